"""Decides whether a statement may run in DuckDB: checks each node of its parse against `allowed`.

Invariant: what passes is one query whose every table is a table of the read point (or a name that the query
itself defines), whose every function is known to read nothing but its arguments, and in which nothing is
decided later (no parameter, no statement in a string).  A node that is not in the lists is refused.

The parse is DuckDB's own (``json_serialize_sql``), which knows only queries: what writes, loads, attaches or
sets is none, and is refused there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import LakeError
from slotlake.spark.read.duck.quoting import literal
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.table_names import find_table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WITH_SPARK = "or use --engine spark, which runs Spark SQL (it takes some seconds to start)"
_WAY_OUT = f"ask for rows with one SELECT of this lake's tables, {WITH_SPARK}"
_EXPLAIN = re.compile(r"\s*(EXPLAIN(?:\s+ANALYZE)?)(?=[\s(])", re.IGNORECASE)
_FIRST_WORD = re.compile(r"\s*(\w+)")
_OWN_PLACES = ({"", "system"}, {"", "main"})  # catalog and schema of DuckDB's functions
_NO_NAMES: frozenset[str] = frozenset()
_Child = tuple[Any, frozenset[str]]  # what a node holds, and the names of queries that can be used there


@dataclass
class Judged:
    """A statement that may run.

    Attributes:
        sql: the statement.
        views: namespace and name, as written, of each table that it reads.
    """

    sql: str
    views: dict[tuple[str, str], Pinned] = field(default_factory=dict)


def judged(connection: DuckDBPyConnection, sql: str, read_point: ReadPoint) -> Judged:
    """Return the statement with the tables that it reads.

    Args:
        connection: a DuckDB, which parses; nothing is executed.
        read_point: what it may read.

    Raises:
        LakeError: it is no query, or one that may not run; or it is not SQL.
    """
    explain = _EXPLAIN.match(sql)
    query = sql[explain.end() :] if explain else sql
    judge = _Judge(read_point, Judged(sql))
    unchecked: list[_Child] = [(_parsed(connection, query, sql), _NO_NAMES)]
    while unchecked:  # not by recursion: a condition of a thousand parts is a thousand nodes deep
        unchecked += judge.children(*unchecked.pop())
    return judge.judged


def _parsed(connection: DuckDBPyConnection, query: str, sql: str) -> Any:
    import duckdb

    try:
        # As a literal: a parameter would make DuckDB import pandas.
        row = connection.execute(f"SELECT json_serialize_sql({literal(query)})::VARCHAR").fetchone()
    except (duckdb.Error, UnicodeError):  # a zero byte, half of a character
        raise _no_query(sql) from None
    try:
        parsed = json.loads(row[0] if row else "{}")
    except RecursionError:
        raise _refused(sql, "such deep nesting") from None
    if parsed.get("error"):
        words = str(parsed.get("error_message", ""))
        if parsed.get("error_type") == "parser":
            raise LakeError(f"the query failed: {words}", where="in its text", way_out=_correct_it())
        raise _no_query(sql)
    statements = parsed.get("statements", ())
    if len(statements) != 1:
        raise _no_query(sql)
    return statements[0]["node"]


class _Judge:
    """Judges one value of a parse at a time, and says what it holds."""

    def __init__(self, read_point: ReadPoint, statement: Judged) -> None:
        self.read_point, self.judged = read_point, statement

    def children(self, value: Any, names: frozenset[str]) -> Iterator[_Child]:
        """What a value holds that is to be judged too.

        Raises:
            LakeError: the value itself may not stand in a query.
        """
        if isinstance(value, list):
            yield from ((each, names) for each in value)
        elif isinstance(value, dict) and "class" in value:
            yield from self._expression(value, names)
        elif isinstance(value, dict) and isinstance(value.get("type"), str):
            yield from self._kind(value["type"], value, names)
        elif isinstance(value, dict):
            yield from ((each, names) for each in value.values())

    def _expression(self, value: dict[str, Any], names: frozenset[str]) -> Iterator[_Child]:
        kind = value["class"]
        if kind not in EXPRESSIONS:
            raise _refused(self.judged.sql, str(kind))
        if kind == "CONSTANT":
            return
        if kind in {"FUNCTION", "WINDOW"}:
            _check_function(value, FUNCTIONS)
        yield from ((each, names) for each in value.values())

    def _kind(self, kind: str, value: dict[str, Any], names: frozenset[str]) -> Iterator[_Child]:
        if kind not in KINDS and not kind.endswith("_TYPE_INFO"):
            raise _refused(self.judged.sql, kind)
        if kind == "BASE_TABLE":
            self._table(value, names)
        elif kind == "TABLE_FUNCTION":
            function = value["function"]
            _check_function(function, TABLE_FUNCTIONS)
            yield from ((each, names) for each in function.values())
            value = {key: each for key, each in value.items() if key != "function"}
        elif kind == "SHOW_REF" and (value.get("table_name") or not value.get("query")):
            raise _no_query(self.judged.sql)
        yield from _scoped(kind, value, names)

    def _table(self, value: dict[str, Any], names: frozenset[str]) -> None:
        catalog, schema, table = (value[part] for part in ("catalog_name", "schema_name", "table_name"))
        if not catalog and not schema and table.lower() in names:
            return
        if value.get("at_clause"):
            raise _refused(self.judged.sql, "AT (another point): --at is for all tables")
        written = ".".join(part for part in (catalog, schema, table) if part)
        key = schema or self.read_point.lake.namespace, table
        pinned = find_table(self.read_point, *key) if catalog in {"", self.read_point.lake.catalog} else None
        if pinned is None:
            raise _no_table(self.read_point, written)
        self._add_view(key, pinned, written)

    def _add_view(self, key: tuple[str, str], pinned: Pinned, written: str) -> None:
        folded = key[0].lower(), key[1].lower()
        for other, table in self.judged.views.items():
            if folded == (other[0].lower(), other[1].lower()):
                if table.name != pinned.name:
                    raise LakeError(
                        "two tables of the query differ only in the case of letters, which DuckDB ignores",
                        where=f"tables {'.'.join(other)} and {written}",
                        way_out="use --engine spark for this query",
                    )
                return
        self.judged.views[key] = pinned


def _scoped(kind: str, value: dict[str, Any], names: frozenset[str]) -> Iterator[_Child]:
    """The parts of a node, each with the queries that WITH has named for it."""
    rest = dict(value)
    for entry in (rest.pop("cte_map", None) or {}).get("map", ()):
        yield entry["value"], names
        names |= {entry["key"].lower()}
    if kind in {"CTE_NODE", "RECURSIVE_CTE_NODE"}:
        yield rest.pop("query" if kind == "CTE_NODE" else "left"), names
        names |= {rest["cte_name"].lower()}
    yield from ((each, names) for each in rest.values())


def _check_function(function: dict[str, Any], allowed: frozenset[str]) -> None:
    place = function.get("catalog", ""), function.get("schema", "")
    name = str(function.get("function_name", "")).lower()
    if name in allowed and all(part in own for part, own in zip(place, _OWN_PLACES, strict=True)):
        return
    raise LakeError(
        f"the function {'.'.join(part for part in (*place, name) if part)} cannot be called here",
        where="DuckDB: it is unknown, or may read files, settings or other tables",
        way_out=f"use another function, {WITH_SPARK}",
    )


def _correct_it() -> str:
    return f"correct the statement, {WITH_SPARK}"


def _no_table(read_point: ReadPoint, written: str) -> LakeError:
    lake = read_point.lake
    return LakeError(
        f"this lake has no table {written}",
        where=f"catalog {lake.catalog}, namespace {lake.namespace}",
        way_out="tables are named as in the source (public.orders) or as in the lake (shop.orders); slotlake "
        "status lists them; Iceberg's metadata tables can be read with --engine spark",
    )


def _no_query(sql: str) -> LakeError:
    match = _FIRST_WORD.match(sql)
    return LakeError(
        "only queries can be run here",
        where=f"a statement beginning with {(match[1] if match else '')[:20]!r}",
        way_out="ask for rows with one SELECT of this lake's tables; rows are changed at the source alone",
    )


def _refused(sql: str, what: str) -> LakeError:
    match = _FIRST_WORD.match(sql)
    return LakeError(
        f"only queries can be run here, and none with {what}",
        where=f"a statement beginning with {(match[1] if match else '')[:20]!r}",
        way_out=_WAY_OUT,
    )


# What a query for DuckDB may be made of: the lists by which spark/read/duck/judge.py goes.
#
# What is not in the lists is refused, so a DuckDB that learns something new does not open a door by it.  The
# nodes are those of DuckDB 1.5's ``json_serialize_sql``.  The functions are its own
# (``duckdb_functions()``), but for those that tell of settings, sessions or catalogs (``current_setting``,
# ``getvariable``, ``pg_*``), change something (``nextval``, ``write_log``, ``setseed``), plan a statement in
# a string (``json_serialize_plan``), or wait (``sleep_ms``).  Of its table functions only those are here
# that make rows of their arguments.

_EXPRESSIONS = """
    BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA LAMBDA_REF OPERATOR
    POSITIONAL_REFERENCE STAR SUBQUERY WINDOW
"""
EXPRESSIONS = frozenset(_EXPRESSIONS.split())
# Queries, what FROM can hold, and what changes a result.
_KINDS = """
    CTE_NODE RECURSIVE_CTE_NODE SELECT_NODE SET_OPERATION_NODE
    BASE_TABLE EMPTY EXPRESSION_LIST JOIN PIVOT SHOW_REF SUBQUERY TABLE_FUNCTION
    DISTINCT_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER ORDER_MODIFIER
    ASCENDING DESCENDING ORDER_DEFAULT
"""
KINDS = frozenset(_KINDS.split())
TABLE_FUNCTIONS = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)
_FUNCTIONS = """
    !__postfix !~~ !~~* % & && * ** + - ->> / // <-> << <=> <@ >> @ @> ^ ^@ abs acos acosh add age aggregate
    ago alias any_value apply approx_count_distinct approx_quantile approx_top_k arbitrary arg_max
    arg_max_null arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg
    array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
    array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
    array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any
    array_indexof array_inner_product array_intersect array_length array_negative_dot_product
    array_negative_inner_product array_pop_back array_pop_front array_position array_prepend array_push_back
    array_push_front array_reduce array_resize array_reverse array_reverse_sort array_select array_slice
    array_sort array_to_json array_to_string array_to_string_comma_default array_transform array_unique
    array_value array_where array_zip ascii asin asinh atan atan2 atanh avg bar base64 bin bit_and bit_count
    bit_length bit_or bit_position bit_xor bitstring bitstring_agg bool_and bool_or cardinality cbrt ceil
    ceiling century char_length character_length chr coalesce concat concat_ws constant_or_null contains
    corr cos cosh cot count count_if count_star countif covar_pop covar_samp cume_dist current_catalog
    current_database current_date current_localtime current_localtimestamp current_schema current_schemas
    current_user damerau_levenshtein date_add date_diff date_part date_sub date_trunc datediff datepart
    datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade decode degrees
    dense_rank divide editdist3 element_at encode ends_with entropy enum_first enum_last enum_range
    enum_range_boundary epoch epoch_ms epoch_ns epoch_us equi_width_bins era error even exp factorial favg
    fdiv fill filter first first_value flatten floor fmod format format_bytes formatreadabledecimalsize
    formatreadablesize from_base64 from_binary from_hex from_json from_json_strict fsum gamma gcd
    gen_random_uuid generate_series generate_subscripts geomean geometric_mean get_bit get_current_time
    get_current_timestamp grade_up greatest greatest_common_divisor group_concat grouping hamming hash hex
    histogram histogram_exact hour if ifnull ilike_escape instr is_histogram_other_bin isfinite isinf isnan
    isodow isoyear jaccard jaro_similarity jaro_winkler_similarity json json_array json_array_length
    json_contains json_exists json_extract json_extract_path json_extract_path_text json_extract_string
    json_group_array json_group_object json_group_structure json_keys json_merge_patch json_object
    json_pretty json_quote json_structure json_transform json_transform_strict json_type json_valid
    json_value julian kahan_sum kurtosis kurtosis_pop lag last last_day last_value lcase lcm lead least
    least_common_multiple left left_grapheme len length length_grapheme levenshtein lgamma like_escape list
    list_aggr list_aggregate list_any_value list_append list_apply list_approx_count_distinct list_avg
    list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat list_concat list_contains
    list_cosine_distance list_cosine_similarity list_count list_distance list_distinct list_dot_product
    list_element list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all
    list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis
    list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode list_negative_dot_product
    list_negative_inner_product list_pack list_position list_prepend list_product list_reduce list_resize
    list_reverse list_reverse_sort list_select list_sem list_skewness list_slice list_sort list_stddev_pop
    list_stddev_samp list_string_agg list_sum list_transform list_unique list_value list_var_pop
    list_var_samp list_where list_zip listagg ln log log10 log2 lower lpad ltrim mad make_date make_time
    make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz map map_concat map_contains
    map_contains_entry map_contains_value map_entries map_extract map_extract_value map_from_entries
    map_keys map_values max max_by md5 md5_number md5_number_lower md5_number_upper mean median microsecond
    millennium millisecond min min_by minute mismatches mod mode month monthname multiply nanosecond
    nextafter nfc_normalize normalized_interval not_ilike_escape not_like_escape now nth_value ntile nullif
    octet_length ord parse_dirname parse_dirpath parse_filename parse_formatted_bytes parse_path
    percent_rank pg_size_pretty pg_typeof pi position pow power prefix printf product quantile quantile_cont
    quantile_disc quarter radians random range rank rank_dense reduce regexp_escape regexp_extract
    regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array
    regexp_split_to_table regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
    regr_syy repeat replace reservoir_quantile reverse right right_grapheme round round_even roundbankers
    row row_number row_to_json rpad rtrim second sem session_user set_bit sha1 sha256 sign signbit sin sinh
    skewness split split_part sqrt starts_with stddev stddev_pop stddev_samp str_split str_split_regex
    strftime string_agg string_split string_split_regex string_to_array strip_accents strlen strpos strptime
    struct_concat struct_contains struct_extract struct_extract_at struct_has struct_indexof struct_insert
    struct_keys struct_pack struct_position struct_update struct_values substr substring substring_grapheme
    subtract suffix sum sum_no_overflow sumkahan switch tan tanh time_bucket timezone timezone_hour
    timezone_minute to_base to_base64 to_binary to_centuries to_days to_decades to_hex to_hours to_json
    to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp
    to_weeks to_years today transaction_timestamp translate trim trunc try_strptime typeof ucase unbin unhex
    unicode union_extract union_tag union_value unnest unpivot_list upper url_decode url_encode user uuid
    uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 var_pop var_samp variance variant_extract
    variant_typeof version wavg week weekday weekofyear weighted_avg xor year yearweek | || ~ ~~ ~~* ~~~
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
