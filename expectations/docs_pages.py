"""Data Docs pages that need no network: Great Expectations' content, in a frame of our own.

The library's own pages load Bootstrap, jQuery, fonts, a chart library and a logo from eleven places on
the internet, and their index is empty without the scripts.  Its content blocks are kept; the templates
around them, the index table, tabs and collapsed parts are replaced by plain HTML and one style sheet.
No script at all, and a Content-Security-Policy that forbids loading anything.
"""

from __future__ import annotations

from typing import Any

from great_expectations.render.view import DefaultJinjaIndexPageView, DefaultJinjaPageView
from jinja2 import ChoiceLoader, DictLoader

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #1a7f37; --bad: #cf222e; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem 1.5rem 3rem; }
header { border-bottom: 1px solid var(--line); display: flex; gap: 1rem; padding-bottom: .6rem; }
a { color: LinkText; } h4, h5, h6 { margin: 1rem 0 .3rem; }
.alert { background: var(--soft); border-radius: .4rem; padding: .3rem .8rem; }
table { border-collapse: collapse; margin: .4rem 0; } code, pre { font-family: ui-monospace, monospace; }
td, th { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; } thead th:first-child { min-width: 4rem; }
.badge { background: var(--soft); border-radius: .3rem; padding: 0 .4rem; }
.text-success, .good { color: var(--good); } .text-danger, .bad { color: var(--bad); }
.fa-check-circle::before { content: "\\2714\\00a0 yes"; }
.fa-times::before { content: "\\2718\\00a0 no"; }
.fa-exclamation-triangle::before { content: "\\26A0\\00a0not checked"; } .text-warning { color: #9a6700; }
.cooltip > span { display: none; } i.fas { font-style: normal; font-weight: 600; white-space: nowrap; }
"""

_FRAME = (
    """<!DOCTYPE html>
<html lang="en"><head><meta charset="UTF-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1.0">
<title>{{ page_title | default("Data Docs") }}</title><style>"""
    + _STYLE
    + """</style></head><body>
<header><strong>slotlake: checks of the lake</strong>
{% if renderer_type != "SiteIndexPageRenderer" %}<a href="{{ home }}">all checks</a>{% endif %}</header>
<main>{% for section in sections %}{% set section_loop = loop %}{% include 'section.j2' %}{% endfor %}</main>
</body></html>
"""
)

_UP = """{% set dots = (expectation_suite_name or "").count(".") %}
{% set depth = dots + (1 if renderer_type == "ExpectationSuitePageRenderer" else 4) %}
{% set home = ("../" * depth) ~ "index.html" %}"""

_TABLE = """{% include 'content_block_header.j2' %}
<table><thead><tr>{% for column in content_block["table_columns"] if column.get("visible") is not false -%}
<th>{{ column["title"] }}</th>{% endfor %}</tr></thead><tbody>
{% for row in content_block["table_data"] | render_bootstrap_table_data -%}
<tr>{% for column in content_block["table_columns"] if column.get("visible") is not false -%}
<td>{% if loop.first and row.get("_table_row_link_path") -%}
<a href="{{ row["_table_row_link_path"] }}">{{ row[column["field"]] }}</a>
{%- else %}{{ row[column["field"]] }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>"""

_TABS = """{% include 'content_block_header.j2' %}
{% for tab in content_block["tabs"] %}<h4>{{ tab["tab_name"] }}</h4>
{{ tab["tab_content"] | render_content_block(content_block_id=content_block_id ~ "-" ~ loop.index) }}
{% endfor %}"""

_COLLAPSE = """{% set link = content_block.get("collapse_toggle_link", "more") %}
<details><summary>{{ link | render_content_block }}</summary>
{% for block in content_block["collapse"] %}
{{ block | render_content_block(content_block_id=content_block_id) }}
{% endfor %}</details>"""

_TEMPLATES = {
    "page.j2": _UP + _FRAME,
    "index_page.j2": _FRAME,
    "bootstrap_table.j2": _TABLE,
    "tabs.j2": _TABS,
    "collapse.j2": _COLLAPSE,
}


def _offline(view: Any) -> None:
    view.env.loader = ChoiceLoader([DictLoader(_TEMPLATES), view.env.loader])


class OfflinePageView(DefaultJinjaPageView):  # type: ignore[misc]
    """A validation's or a suite's page."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _offline(self)


class OfflineIndexPageView(DefaultJinjaIndexPageView):  # type: ignore[misc]
    """The index of all checks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _offline(self)
