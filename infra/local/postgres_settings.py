"""The settings of the embedded server, as lines of its configuration file."""

from __future__ import annotations

from collections.abc import Mapping

_DEFAULTS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "password_encryption": "scram-sha-256",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %d ",
    # Statements and error details hold row values: they never reach the log.
    "log_statement": "none",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}


def settings_text(conf: Mapping[str, str]) -> str:
    """Return lines for postgresql.conf.

    Args:
        conf: settings over the defaults above.
    """
    return "".join(f"{name} = '{_quoted(value)}'\n" for name, value in {**_DEFAULTS, **conf}.items())


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
