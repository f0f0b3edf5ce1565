"""Storage: log directories, tables and locks, on a disk of this machine or in an object store."""
