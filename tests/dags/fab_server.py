"""The API server's app with FAB's auth manager, asked as four users; prints what each was answered.

Run with SLOTLAKE_PIPELINES (pipelines shop and desk), and Airflow's settings for FAB and a fresh database.
"""

from __future__ import annotations

import json
from typing import Any

USERS = {"boss": "Admin", "looker": "Viewer", "nobody": "Public", "shopper": "only_shop"}
PATHS = (
    "/slotlake/",
    "/slotlake/pipeline/shop",
    "/slotlake/pipeline/desk",
    "/slotlake/dag/cdc_sync_shop",
    "/slotlake/metrics",
    "/slotlake/pipeline/shop/data-docs/index.html",
)


def _make_dags() -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(DagBundleModel(name="dags"))
        session.flush()
        for name in ("shop", "desk"):
            session.add(DagModel(dag_id=f"cdc_sync_{name}", bundle_name="dags", is_stale=False))


def _make_users() -> None:
    from airflow.providers.fab.auth_manager.cli_commands.utils import get_application_builder

    with get_application_builder() as builder:
        manager = builder.sm
        role = manager.add_role("only_shop")
        manager.create_permission("can_read", "DAG:cdc_sync_shop")
        manager.add_permission_to_role(role, manager.get_permission("can_read", "DAG:cdc_sync_shop"))
        for user, name in USERS.items():
            found = manager.find_role(name)
            assert manager.add_user(user, user, user, f"{user}@example.org", found, password=f"{user}-pw")


def main() -> None:
    """Ask for all paths, as each user and as a stranger."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    _make_dags()
    _make_users()
    answers: dict[str, Any] = {}
    with TestClient(create_app(apps="core")) as client:
        answers["stranger"] = _asked(client, {})
        for user in USERS:
            token = client.post("/auth/token", json={"username": user, "password": f"{user}-pw"})
            header = {"Authorization": f"Bearer {token.json()['access_token']}"}
            answers[user] = _asked(client, header)
    print(json.dumps(answers))


def _asked(client: Any, headers: dict[str, str]) -> dict[str, Any]:
    answers = {}
    client.cookies.clear()
    for path in PATHS:
        answer = client.get(path, headers=headers, follow_redirects=False)
        answers[path] = [answer.status_code, answer.text]
    return answers


if __name__ == "__main__":
    main()
