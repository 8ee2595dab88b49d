"""What is, and what must hold: events, the ledger that they make, the rules that they obey."""
