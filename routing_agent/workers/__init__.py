"""Several processes behind one port that are one agent: see docs/adr/0013."""
