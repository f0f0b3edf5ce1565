"""Java: what a Spark session needs before its start, and the errors of Java and of executors.

java         finds Java, and starts it by a launcher that drops arguments which it does not support
java_errors  one sentence with the root cause, from an error of Spark
"""
