# %% [markdown]
# # A pinned point of the lake in pandas and Arrow
#
# Open this file in Jupyter (with jupytext), in VS Code or in PyCharm: each `# %%` begins a cell. It also runs
# as a plain script: `python docs/notebook.py shop.yaml public.orders`. All cells see the lake at the same
# LSN.

# %%
import sys

from pyiceberg.table import StaticTable

from slotlake import Pipeline
from slotlake.spark.read.point import ReadPoint

pipeline_file, table = sys.argv[1:3] if len(sys.argv) > 2 else ("shop.yaml", "public.orders")
pipeline = Pipeline.open(pipeline_file)

# %% [markdown]
# ## SQL at one point, by DuckDB: every value as PostgreSQL prints it

# %%
queries = pipeline.pinned_queries()  # or pinned_queries("0/1A2B3C4D"), or a time
result = queries.ask(f"SELECT count(*) AS rows FROM {table}")
print(f"{table} at {queries.lsn}: {result.rows[0][0]} rows")

# %% [markdown]
# ## The same point in Arrow and pandas, by pyiceberg: typed values

# %%
point = ReadPoint.latest(pipeline.lake)
pinned = point.pinned[point.find(table)]
scan = StaticTable.from_metadata(pinned.location).scan(snapshot_id=point.snapshot_id(table))
arrow = scan.to_arrow()
frame = arrow.to_pandas()
print(arrow.schema)
print(frame.describe(include="all"))

# %% [markdown]
# ## Without pyiceberg: batches of Arrow, in bounded memory

# %%
rows = sum(batch.num_rows for batch in point.arrow_batches(table))
print(f"{rows} rows in batches, {len(frame)} in the data frame")
