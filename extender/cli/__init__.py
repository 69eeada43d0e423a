"""The command line: one file for each command, and printers. The package contains no logic."""
