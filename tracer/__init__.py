"""Recording: run a command under the probe and read back what it called."""
