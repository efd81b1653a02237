"""What production federated learning runs: matrix mechanisms, as deployed."""
