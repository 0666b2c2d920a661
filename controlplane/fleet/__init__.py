"""What is running: nodes and their agents, pools, replicas, traffic splits."""
