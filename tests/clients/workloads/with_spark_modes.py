"""Trainings by the ways in which Spark asks for GPUs: NAME COUNT, and DISCOVERY where a stage of its own asks."""

import sys

from pyspark import SparkContext, TaskContext
from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests
from together import train_together


def run(index):
    addresses = TaskContext.get().resources()["gpu"].addresses
    return f"{train_together(str(index), count, name)} on {','.join(addresses)}"


def profile(discovery):
    executor = ExecutorResourceRequests().cores(1).memory("512m").resource("gpu", 1, discovery)
    return ResourceProfileBuilder().require(executor).require(TaskResourceRequests().cpus(1).resource("gpu", 1)).build


name, count = sys.argv[1], int(sys.argv[2])
numbers = SparkContext().parallelize(range(count), count)
if sys.argv[3:]:
    assert numbers.map(lambda index: index + 1).sum() == count * (count + 1) / 2  # a stage without a GPU
    numbers = numbers.withResources(profile(sys.argv[3]))
for line in numbers.map(run).collect():
    print(line)
