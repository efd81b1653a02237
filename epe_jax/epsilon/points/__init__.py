"""Point estimates of ε, which guarantee nothing, and the fits behind them."""
