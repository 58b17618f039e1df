"""The plugin that Airflow loads (entry point ``airflow.plugins``): a page in its navigation and on its DAGs.

It also makes a starting scheduler warm its workers (`infra.airflow.worker_start`), and makes the pools of
pipelines (`infra.airflow.pools`).

Every process of Airflow loads plugins, so this module imports nothing heavy; the page's own module is
imported with the first request, in the API server. Airflow does not put a plugin's app behind its login: that
module does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from slotlake.infra.airflow import pools, worker_start
from slotlake.infra.airflow.base_path import PREFIX, base_path

_Message = MutableMapping[str, Any]


class LateApp:
    """An ASGI app that imports the page with its first request."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        if self._app is None:
            from slotlake.infra.airflow.page import make_app

            self._app = make_app()
        await self._app(scope, receive, send)


class SlotlakePlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow is not followed
    """All pipelines in the navigation; on the page of a DAG, the pipeline of that DAG."""

    name = "slotlake"
    listeners: ClassVar[list[Any]] = [worker_start, pools]
    fastapi_apps: ClassVar[list[dict[str, Any]]] = [
        {"app": LateApp(), "url_prefix": PREFIX, "name": "slotlake"}
    ]
    external_views: ClassVar[list[dict[str, Any]]] = [
        {
            "name": "slotlake",
            "href": f"{base_path()}{PREFIX}/",
            "destination": "nav",
            "nav_top_level": True,
            "url_route": "slotlake",
        },
        {
            "name": "slotlake",
            "href": f"{base_path()}{PREFIX}/dag/{{DAG_ID}}",
            "destination": "dag",
            "url_route": "slotlake-pipeline",
        },
    ]
