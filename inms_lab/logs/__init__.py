"""What happened: kept, written, read without trust, masked, and held against the books."""
