"""Java and the cluster: what a Spark session needs before its start, and the errors of Java."""
