"""Estimates of ε from the scores of canaries: NumPy and SciPy in float64, no JAX.

Every estimator is a function `(scores, *, delta, ...) -> Estimate`. It works on the
last axis of `Scores` and broadcasts over the others. Which one for which scores:

Point estimates, which guarantee nothing:

- cosines, or scores that taking part shifts by known multiples: `location_mixture`,
  the one that a report of a run prints first; `most_exposed` for the canary that is
  shifted most.
- maxima over rounds: `maximum_over_rounds`.
- any other scores: `two_gaussian`; those of the papers are `eps_lo` and
  `max_threshold`.

Lower bounds, which hold at their confidence:

- any scores of a fixed number of canaries: `lower_bound`.
- canaries that independent coins included, from one run: `one_run`, and
  `one_run_independent` if they leak independently.
- if the trade-off curve is Gaussian, or of a family: `gdp_bound`, `family_bound`,
  `one_run_gdp`.
- if the scores are Gaussian: `location_mixture_bound`, `gaussian_lower_bound`.

Around an estimate: `estimate_noise_floor` is what it reports when nothing leaks,
`bootstrap_interval` how far it scatters, `compute_risks` what ε means for a person.
`registry` is the table from which an audit chooses by what is known of the scores.

What is the same in every function, and explained here alone:

- `scores`: of canaries. Leading axes are independent audits, [*batch], and ε has them.
- `delta`: δ, in (0, 1).
- `significance`, in (0, 1): the chance that a lower bound exceeds the true ε, or that a
  one-sided limit fails. A bound has the confidence 1 - significance, one-sided.
- `confidence`, in (0, 1), of an interval: it is two-sided, and each of its limits fails
  with a chance of (1 - confidence)/2. A point estimate has an interval or none, and
  no confidence.
- `sides`: which guesses of the attack "in if score >= threshold" bound ε (`types.Sides`).
- An argument out of range is a ValueError with its name, its value and what to give.

Names are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
