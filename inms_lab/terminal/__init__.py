"""One file a command, and what the commands show."""
