"""Configuration: the options of the daemon and the addresses that they name."""
