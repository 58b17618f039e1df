#!/bin/sh
# /entrypoint of the image `slotlake-airflow`: the probes of Airflow's official chart call a command through it.
exec "$@"
