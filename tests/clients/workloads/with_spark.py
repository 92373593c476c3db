import sys

from pyspark import SparkContext
from training import train

for line in SparkContext().parallelize(sys.argv[1:], 1).map(train).collect():
    print(line)
