#!/bin/sh
# The commands of Hadoop's clients, for a sandbox: what a distribution's bin/yarn does, with the jars beside it.
HADOOP_HOME=${HADOOP_HOME:-$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)}
command=${1:?yarn app|node|queue|cluster|rmadmin|logs|jar|classpath|CLASS ...}
shift
cli=org.apache.hadoop.yarn.client.cli
case $command in
app | application | applicationattempt | container) set -- "$command" "$@" && class=$cli.ApplicationCLI ;;
node) class=$cli.NodeCLI ;;
queue) class=$cli.QueueCLI ;;
cluster) class=$cli.ClusterCLI ;;
rmadmin) class=$cli.RMAdminCLI ;;
logs) class=$cli.LogsCLI ;;
jar) class=org.apache.hadoop.util.RunJar ;;
*) class=$command ;;
esac
classpath="$HADOOP_CONF_DIR:${HADOOP_CLASSPATH:+$HADOOP_CLASSPATH:}$HADOOP_HOME/share/hadoop/common/lib/*"
if [ "$command" = classpath ]; then
    echo "$classpath"
    exit
fi
# shellcheck disable=SC2086 # options are words
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" --add-opens=java.base/java.lang=ALL-UNNAMED $HADOOP_CLIENT_OPTS \
    -classpath "$classpath" "$class" "$@"
