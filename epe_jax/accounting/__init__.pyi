from .analytic import Allocation as Allocation
from .analytic import Analytic as Analytic
from .analytic import Mixture as Mixture
from .analytic import Ring as Ring
from .discrete_noise import (
  epsilon_of_discrete_gaussian as epsilon_of_discrete_gaussian,
)
from .discrete_noise import epsilon_of_ring as epsilon_of_ring
from .discrete_noise import epsilon_of_skellam as epsilon_of_skellam
from .gaussian import epsilon_of_best as epsilon_of_best
from .gaussian import epsilon_of_poisson as epsilon_of_poisson
from .gaussian import epsilon_of_releases as epsilon_of_releases
from .matrix_mechanism import ParticipationSchema as ParticipationSchema
from .matrix_mechanism import Sensitivity as Sensitivity
from .matrix_mechanism import (
  epsilon_of_matrix_mechanism as epsilon_of_matrix_mechanism,
)
from .matrix_mechanism import find_sensitivity as find_sensitivity
from .matrix_mechanism import whiten as whiten
from .random_allocation import compute_lines as compute_lines
from .random_allocation import epsilon_of_allocation as epsilon_of_allocation
