#!/bin/sh
# /clean-logs of the image `slotlake-airflow`: the log groomers of Airflow's official chart run it for ever.
# It removes log files that nobody has written for the time that the chart says, and folders that are empty then.
set -eu
trap 'exit 0' TERM INT
logs=${AIRFLOW_HOME:-/opt/airflow}/logs
minutes=$((${AIRFLOW__LOG_RETENTION_DAYS:-15} * 1440 + ${AIRFLOW__LOG_RETENTION_MINUTES:-0}))
while :; do
    if [ -d "$logs" ]; then
        # What another process has removed meanwhile is no error.
        find "$logs" -type f -mmin "+$minutes" -delete || :
        find "$logs" -mindepth 1 -type d -empty -mmin "+$minutes" -delete || :
    fi
    sleep "$((${AIRFLOW__LOG_CLEANUP_FREQUENCY_MINUTES:-15} * 60))" &
    wait $!
done
