"""Runs moto, which plays AWS Glue, with the one check that Glue makes and moto leaves out.

A change that names a version which is not the entry's present one is refused (AWS Glue's manual, UpdateTable:
VersionId).  This file is run by the Python that has moto, not imported.
"""

from __future__ import annotations

import sys
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from moto.server import main

_update = GlueResponse.update_table


def _checked(response: Any) -> Any:
    given = response.parameters.get("VersionId")
    name = response.parameters["TableInput"]["Name"]
    table = response.glue_backend.get_table(response.parameters["DatabaseName"], name)
    if given is not None and given != table.as_dict()["VersionId"]:
        raise JsonRESTError("ConcurrentModificationException", "another version is current")
    return _update(response)


GlueResponse.update_table = _checked
main(["-p", sys.argv[1]])
