"""Java: what a Spark session needs before its start, and the errors of Java and of executors."""
