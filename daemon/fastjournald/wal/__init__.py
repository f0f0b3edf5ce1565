"""Write-ahead log: what changes of persistent entries become as log records. Pure."""
