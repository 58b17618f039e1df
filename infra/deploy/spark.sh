#!/bin/sh
# A part of a standalone Spark cluster, from the Spark of the image:
#
#   slotlake-spark master  OPTION…           options as of org.apache.spark.deploy.master.Master
#   slotlake-spark worker  OPTION… MASTER
#   slotlake-spark connect MASTER            a Connect server, with the image's jars, on port 15002
#
# SPARK_SECRET, when set, is what the parts prove each other that they belong together. It goes into a file,
# because all users of a machine see command lines.
set -eu
umask 077
package() {
    python -P -c 'import sys, importlib.util as u; print(*u.find_spec(sys.argv[1]).submodule_search_locations)' "$1"
}
SPARK_HOME=$(package pyspark)
SPARK_CONF_DIR=$(package slotlake)/infra/local/spark_conf
JAVA_HOME=${JAVA_HOME:-$SLOTLAKE_PREPARED/java}
SPARK_SUBMIT_OPTS=${SPARK_SUBMIT_OPTS:-}
export SPARK_HOME SPARK_CONF_DIR JAVA_HOME SPARK_SUBMIT_OPTS
part=${1:?master, worker or connect}
shift
temporary=${TMPDIR:-/tmp}
conf=$(mktemp -p "$temporary" spark-XXXXXX)
if [ -n "${SPARK_SECRET:-}" ]; then
    printf '%s\n' "spark.authenticate true" "spark.authenticate.secret $SPARK_SECRET" \
        "spark.network.crypto.enabled true" >>"$conf"
fi
case $part in
master)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --properties-file "$conf" "$@"
    ;;
worker)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker --properties-file "$conf" \
        --work-dir "$temporary/work" "$@"
    ;;
connect)
    jars=$(printf '%s,' "$SLOTLAKE_PREPARED"/jars/*.jar)
    cat >>"$conf" <<EOF
spark.master ${1:?the address of the master}
spark.jars ${jars%,}
spark.driver.host ${SPARK_DRIVER_HOST:-$(hostname)}
spark.driver.bindAddress 0.0.0.0
spark.driver.memory ${SPARK_DRIVER_MEMORY:-1g}
spark.executor.memory ${SPARK_EXECUTOR_MEMORY:-1g}
spark.connect.grpc.binding.address 0.0.0.0
spark.connect.grpc.binding.port ${SPARK_CONNECT_PORT:-15002}
spark.connect.session.planCache.enabled false
spark.sql.extensions org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions
spark.sql.variable.substitute false
spark.sql.catalogImplementation in-memory
spark.sql.warehouse.dir $temporary/warehouse
spark.ui.enabled false
EOF
    exec "$SPARK_HOME/bin/spark-submit" --properties-file "$conf" \
        --class org.apache.spark.sql.connect.service.SparkConnectServer spark-internal
    ;;
*)
    echo "slotlake-spark: $part is not master, worker or connect" >&2
    exit 2
    ;;
esac
