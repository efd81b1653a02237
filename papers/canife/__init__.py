"""CANIFE, the method that the first paper compares with (section 5.4).

References:
  Maddock, Sablayrolles and Stock, "CANIFE: Crafting Canaries for Empirical Privacy
  Measurement in Federated Learning", ICLR 2023.
"""
