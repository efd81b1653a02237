"""Why a rule may be broken, and what to do: a row for each cause.

A rule gives the key of a cause, and what stands in braces in its texts.
"""

from typing import Literal, NamedTuple

Severity = Literal['privacy', 'utility']


class Cause(NamedTuple):
  """Why a rule may be broken.

  Attributes:
    likely: the likely cause or causes.
    cure: what to do.
    severity: 'privacy' if a client is protected less than claimed, 'utility' if
      updates are lost, which also hides canaries from audits.
    title: for people; its key if it is empty.
  """

  likely: str
  cure: str
  severity: Severity = 'privacy'
  title: str = ''


_CLIP_ALL = 'Clip the update of each client to norm S.'
_CLIP_ONCE = (
  "Clip once, to S, after all scaling. This harms nobody's privacy, but noise is for S, "
  'and canaries of norm S arrive shrunk, so that audits underestimate ε.'
)
_EXPECTED_NUMBER = (
  'Divide by the expected number of clients, or make noise that fits those '
  'that are left; or release nothing (raise Refused).'
)
_DIVIDE_BY_EXPECTED = (
  "Divide by the expected number, or claim adjacency='zero_out'."
)
_SEED_FRESHLY = (
  'Seed from the operating system (secrets.randbits(128)), not by a constant.'
)
_TO_ALL_TENSORS = (
  'Add noise of the same standard deviation to every tensor released.'
)
_WEIGHT_ALIKE = (
  'Weight all clients alike; or cap weights at w, divide by n w, and keep the '
  'noise z S / n.'
)

CAUSES = {
  # The amount of noise.
  'no_noise': Cause(
    'no noise is added, or it is switched off',
    'Add Gaussian noise of standard deviation z S to the sum.',
  ),
  'noise_switched_off': Cause(
    'there is no noise at the claim, but some if it is changed: noise is switched '
    'off in small cohorts, or below some S or z',
    'Add noise to every release, or refuse to release.',
  ),
  'noise_follows_updates': Cause(
    'the noise grows with the updates of the round, such as with their largest '
    'norm: its size reveals them, and may be too small if they are small',
    'Let the standard deviation be z S, whatever updates are.',
  ),
  'noise_ignores_clip_norm': Cause(
    'the noise has standard deviation z, not z S',
    'Multiply the noise with the clip norm.',
  ),
  'noise_ignores_noise_multiplier': Cause(
    'the noise does not depend on z; or the factory does not pass it on',
    'Multiply the noise with z, and check that make(claim) uses the claim.',
  ),
  'variance_for_std': Cause(
    'a variance is passed where a standard deviation is wanted, or vice versa',
    'Pass the standard deviation z S.',
  ),
  'divided_by_n_twice': Cause(
    'the noise is divided by n twice: calibrated to the mean, and divided with '
    'the sum once more',
    'Add noise z S to the sum and divide once, or noise z S / n to the mean.',
  ),
  'divided_by_sqrt_n': Cause(
    'the noise of the mean is divided by √n, as if it averaged out; or each '
    'client adds z S / n where z S / √n adds up to z S',
    'Noise of the sum is z S, and of the mean z S / n.',
  ),
  'zeros_not_counted': Cause(
    'the sum is divided by the number of clients whose update is not zero, and the noise '
    'by that of all: among zeros, one client counts for all',
    'Divide by the expected number of clients, whatever they send.',
  ),
  **{
    f'wrong_power_of_{name}': Cause(
      f'the noise has {name} to a power that is wrong by {{{name}:.2g}}',
      f'Check how {name} enters the noise.',
    )
    for name in ('clip_norm', 'noise_multiplier', 'num_clients')
  },
  'classical_noise': Cause(
    'the standard deviation is S √(2 ln(1.25/δ)) / ε, which is proven for ε < 1 only and '
    'too small for a large one',
    'Compute the noise of ε and δ exactly, as Claim.from_epsilon does.',
  ),
  'rho_for_epsilon': Cause(
    'the standard deviation is S / √(2 ε): ε is taken for the ρ of zCDP',
    'Compute the noise of ε and δ exactly, as Claim.from_epsilon does; or claim ρ, as '
    'Claim.from_zcdp does.',
  ),
  'std_for_scale': Cause(
    'z S is the standard deviation of Laplace noise, where its scale is claimed: the '
    'standard deviation is √2 times the scale',
    'Pass the scale z S to the generator.',
  ),
  'averaged_over_machines': Cause(
    'noise is short by 1/√{machines} whatever S, n and z are: it is added on '
    '{machines} machines and averaged (or in {machines} parts), or its variance is '
    'divided by {machines}',
    'Let one machine add the noise after the sum over machines, or let each '
    'of m add √m times as much to its mean.',
  ),
  'one_update_for_two': Cause(
    'the noise is for an update that is there or zero, S apart, and any two updates are '
    'up to 2 S apart',
    "Make the noise for 2 S, or claim adjacency='zero_out'.",
  ),
  'too_small': Cause(
    'the noise is short by a factor that follows from S, n or z in no simple way',
    'Compare the standard deviation passed to the generator with z S.',
  ),
  'too_small_by_a_factor': Cause(
    'the noise is short by the factor {factor:.3g} whatever S, n and z are: a '
    'constant, or a step size that is applied to one of sum and noise',
    'Compare the standard deviation passed to the generator with z S.',
  ),
  'too_much_noise': Cause(
    'there is more noise than the claim needs: a factor is applied twice, or to the '
    'noise alone',
    'Compare the standard deviation passed to the generator with z S.',
    'utility',
  ),
  'tensor_without_noise': Cause(
    'noise is added to some tensors only, such as weights without biases, or in some '
    'rounds',
    _TO_ALL_TENSORS,
  ),
  'tensor_with_less_noise': Cause(
    'the noise of a tensor is scaled with its size or its own norm',
    _TO_ALL_TENSORS,
  ),
  'random_amount_of_noise': Cause(
    'noise is multiplied by a random number, or is the product of random vectors '
    '(of rank one): some releases have much less than others',
    'Draw independent Gaussian noise of standard deviation z S in each coordinate.',
  ),
  'noise_depends_on_updates': Cause(
    'the noise shrinks, or repeats, where updates are large or agree',
    'Let nothing in the noise depend on updates but what is private itself.',
  ),
  'noise_of_another_clip_norm': Cause(
    'the clip norm adapts, and the noise is that of another round, such as the first or '
    'the next one',
    'Let noise be z times the clip norm of the round.',
  ),
  'influence_depends_on_noise': Cause(
    'the noise multiplier changes how updates are clipped or averaged, or updates '
    'are clipped together with the noise',
    'Let z decide about the noise alone.',
  ),
  # Fresh noise of the claimed law in each coordinate, run and process.
  'fixed_seed': Cause(
    'the noise has a fixed seed, so that anyone who knows it, or sees two runs, can '
    'subtract the noise',
    _SEED_FRESHLY,
  ),
  'few_seeds': Cause(
    'noise is drawn from about {seeds:.0f} seeds, or from a clock; two '
    'releases with equal noise reveal the difference of their data',
    'Seed once from the operating system with 128 bits, and go on from there.',
  ),
  'shared_part': Cause(
    'part of the noise is shared between runs', 'Draw all noise afresh.'
  ),
  'noise_equal_between_processes': Cause(
    'each process seeds its noise alike: by a constant where a module is imported '
    '(np.random.seed(0), jax.random.PRNGKey(0)), a counter that starts again, or a clock',
    _SEED_FRESHLY,
  ),
  'direction_without_noise': Cause(
    'noise is centred, or projected: what a client changes in one direction is '
    'released with little noise, or none',
    'Add independent noise to every coordinate, and subtract no mean from it.',
  ),
  'coordinate_without_noise': Cause(
    'coordinate {coordinate} of those with noise has none: noise is masked or sparse',
    'Add noise to every coordinate released.',
  ),
  'number_without_noise': Cause(
    'some numbers have no noise, others in each release, as if noise were masked or dropped',
    'Add noise to every number released.',
  ),
  'noise_reused_between_parameters': Cause(
    'the same random numbers serve several coordinates{where}: a key or seed is '
    'used again for each tensor, or noise is broadcast',
    'Use a key of its own for each tensor, and draw the full shape.',
  ),
  'sizes_depend': Cause(
    'the size of the noise in a coordinate follows from that in another one{where}, such as '
    'by random numbers that are used again with other signs or angles',
    'Draw each number of the noise afresh.',
  ),
  'constant_that_moves': Cause(
    'what looks like a constant depends on what clients send, such as a count, a norm or a '
    'loss, and has no noise',
    'Add noise to all that is released and depends on clients.',
  ),
  'uneven_noise': Cause(
    'coordinates have different variances, or are slightly correlated',
    'Draw independent noise of one variance.',
  ),
  'noise_has_a_mean': Cause(
    'the noise has a mean other than 0, which protects nobody and counts as noise where '
    'its size is measured',
    'Draw noise of mean 0.',
  ),
  'not_gaussian': Cause(
    'it has another law, is cut off, wraps around, or its scale changes between '
    'rounds',
    'Draw noise of the claimed law, or account for the law that it has.',
  ),
  'noise_on_a_grid': Cause(
    'noise is a multiple of a step, and updates are not: what is left of a release '
    'after division by that step is that of the updates',
    'Round updates to the grid before noise is added.',
  ),
  'noise_of_few_values': Cause(
    'noise is rounded to few values, such as those of bfloat16 or float16, and updates are '
    'not: what a release is more than the nearest value is that of the updates',
    'Draw noise in float32 or wider, add it, and round the noisy sum, if at all.',
  ),
  'last_bits_tell': Cause(
    'sum and noise are float32 or float16 numbers, whose sum is a multiple of the last bit '
    'of the larger one: what is finer tells that no update was there',
    'Add noise in float64 and round the sum, or add noise on a grid (secure noise).',
  ),
  'noise_ends_early': Cause(
    'noise is made of float32 uniform numbers, and there are 2^23: it has an end, '
    'beyond which only the update of a client can move a release',
    'Draw noise in float64, or sum several draws.',
  ),
  # The norm of what a client contributes.
  'not_clipped': Cause(
    'updates are not clipped, or not those that are averaged', _CLIP_ALL
  ),
  'some_clients_not_clipped': Cause(
    'some clients of a round are not clipped', _CLIP_ALL
  ),
  'some_tensors_not_clipped': Cause(
    'some tensors are left as they are where others are scaled, such as numbers without '
    'an axis',
    _CLIP_ALL,
  ),
  'clipped_by_another_norm': Cause(
    'what is compared with S is not the claimed norm of the update (L2, if the claim '
    'has no other), or the update is not scaled by S over that norm',
    'Compare that norm of the whole update with S, and scale by S / norm if it is '
    'larger.',
  ),
  'clipped_around_another_point': Cause(
    'what is clipped is the model of a client and not its update, so that an update which '
    'turns the model around moves it by up to 2 S',
    'Clip the update, the model of the client less that of the server.',
  ),
  'norm_of_some_coordinates': Cause(
    'the norm that is compared with S is that of some coordinates, or an estimate '
    'of it',
    'Compare the norm of all coordinates with S.',
  ),
  'per_layer_clipping': Cause(
    'each of {num} tensors is clipped to S by itself, so that an update may '
    'have norm S {root}, and the noise is for S',
    'Clip tensors to S / {root}, or the whole update to S.',
  ),
  'rounded_after_clipping': Cause(
    'updates are clipped, then rounded to the grid, which adds up to half a step to each '
    'of d coordinates: the sensitivity is S + √d g / 2 for a step g, and noise is for S',
    'Round towards zero, or clip to S - √d g / 2, or let the noise be for more.',
  ),
  'clipped_after_the_mean': Cause(
    'the mean is clipped, not the update of each client: one client can turn '
    'all of it',
    'Clip the update of each client before the sum.',
  ),
  'not_a_sum': Cause(
    'the release is not a sum of clipped updates, but their median, a trimmed mean, a sum '
    'of those that resemble the others, or another function, in which one client may '
    'count for more than S / n',
    'Add noise for the sensitivity of that function, or release the sum.',
  ),
  'clipped_twice': Cause(
    'updates are clipped to a smaller norm than S, or twice',
    _CLIP_ONCE,
    'utility',
  ),
  'arrives_scaled': Cause(
    'all updates are scaled, before or after clipping; or the release is in other '
    'units than step_size={step_size:g} and release={release!r} of '
    'the claim say',
    _CLIP_ONCE,
    'utility',
  ),
  'arrives_shrunk': Cause('none that is certain', _CLIP_ONCE, 'utility'),
  'not_finite_enters': Cause(
    'a norm that is NaN, or overflows to inf, fails the comparison with S; or the update '
    'is scaled by S / inf = 0, and 0 · inf is NaN',
    'Drop an update whose norm is not finite, or refuse the round; compute norms in '
    'float64.',
    title='NaN or inf is not rejected',
  ),
  'never_ends': Cause(
    'what the mechanism repeats until a number is small, or large, never is with such an '
    'update',
    'Drop an update whose norm is not finite, or refuse the round. Until then, one client '
    'can stop all training.',
    'utility',
  ),
  'zero_update_fails': Cause(
    'an update is divided by its norm, which is 0',
    'Divide by max(norm, 1e-12), or scale by min(1, S / norm) where norm > S only. '
    'Until then, that a round fails tells that an update was zero.',
    'utility',
  ),
  # The sum.
  'modular_wrap_around': Cause(
    'the sum of a coordinate leaves the range of integers that it is computed '
    'modulo, so that one client turns it around',
    'Let the range hold n S and noise on either side, 2 (n S + 8 z S) wide.',
  ),
  'saturation': Cause(
    'the sum of a coordinate is cut off, or clipped once more',
    'Let the range of a coordinate hold the sum of all clients.',
    'utility',
  ),
  'low_precision': Cause(
    'updates are summed in float16 or bfloat16, or on a coarse grid, which '
    'rounds small ones away',
    'Sum in float32 or float64. This harms training, and hides canaries from '
    'audits.',
    'utility',
  ),
  # Weights, places and presence of clients.
  'weighted_mean': Cause(
    'updates are weighted by examples, and the noise is that of an unweighted mean',
    _WEIGHT_ALIKE,
  ),
  'noise_depends_on_weights': Cause(
    'the noise shrinks when a weight grows', _WEIGHT_ALIKE
  ),
  'weight_of_zero': Cause(
    'a client that has no examples is not clipped, or has a factor of its own',
    'Clip its update as any other, or leave it out.',
  ),
  'dropout_not_counted': Cause(
    'the sum is divided by the clients that are left, and the noise by those '
    'that were expected',
    _EXPECTED_NUMBER,
  ),
  'dropped_noise_is_missing': Cause(
    'noise that dropped clients should have added is not made up for',
    _EXPECTED_NUMBER,
  ),
  'clip_norm_of_presence': Cause(
    'the norm to which updates are clipped depends on how many clients are present',
    _CLIP_ALL,
  ),
  'more_clients_than_expected': Cause(
    'with more clients than expected the noise is divided by their number, and the sum '
    'by the expected one',
    'Divide both by the same number, or take no more clients than expected.',
  ),
  'client_counted_twice': Cause(
    'some clients are in the sum more than once, such as those that fill a round up',
    'Fill a round up with zero updates.',
  ),
  'client_left_out': Cause(
    'some clients of a round are not in the sum, such as those that do not fill a batch',
    'Sum over all clients.',
    'utility',
  ),
  'clients_count_unlike': Cause(
    'the place of a client in the round decides how much it counts',
    'Give each client of a round the same factor.',
  ),
  'count_not_private': Cause(
    'the sum is divided by the number of clients present, which is exact',
    _DIVIDE_BY_EXPECTED,
  ),
  'spread_not_private': Cause(
    'sum and noise are divided by the number of clients present, which is exact: in many '
    'coordinates the size of the noise tells it',
    _DIVIDE_BY_EXPECTED,
  ),
  'weights_not_private': Cause(
    'weights are divided by their sum or by the largest: one client with many examples '
    'scales all others down',
    "Divide by a constant, or claim adjacency='zero_out'.",
  ),
  # Rounds, the clip norm, and checkpoints.
  'noise_reused_between_rounds': Cause(
    'noise is drawn once and used again, or its key or seed is not advanced: the '
    'difference of two releases has no noise',
    'Draw noise afresh in every round.',
  ),
  'momentum_before_noise': Cause(
    'momentum, or another sum over rounds, is applied to updates before noise is '
    'added, so that a client is released again in each later round',
    'Add noise first, and apply momentum to the noisy mean.',
  ),
  'noise_depends_between_rounds': Cause(
    'noise of a round can be predicted from that of others, or fades',
    'Draw independent noise, or account for its covariance.',
  ),
  'sensitivity_of_participations': Cause(
    'the sensitivity of all rounds of a client is larger than accounted for: the matrix '
    'by which noise is correlated is not the one whose columns were normalized, or '
    'clients return sooner or more often, or momentum comes before the noise',
    'Compute the norm of the sum of the columns C e_t over the rounds t of a client, '
    'where C times the noise is independent, and let the noise be z times as much.',
  ),
  'clipped_rest_is_kept': Cause(
    'what clipping cuts off is kept, and released in later rounds (error feedback)',
    'Drop what is cut off, or clip it and account for it in each round.',
  ),
  'stale_update': Cause(
    'an update of an earlier round stands in for a client that is absent, and is released '
    'again',
    'Leave out absent clients, or send zeros in their place.',
  ),
  'clipping_ends': Cause(
    'updates are clipped in the first rounds only, or to a norm that grows',
    'Clip to S in every round.',
  ),
  'state_without_noise': Cause(
    'something that is computed from updates without noise decides how later '
    'rounds treat others, such as a clip norm that adapts',
    'Add noise to what a state is updated with. If that is done, publish the clip '
    'norm as the attribute clip_norm, so that it can be judged.',
  ),
  'clip_norm_from_unclipped_norms': Cause(
    'the clip norm is computed from norms of updates that are not clipped, '
    'without noise: one client sets it',
    'Adapt by the noisy share of updates below the clip norm (Andrew et al. '
    '2021, adaptive clipping), and account for it.',
  ),
  'quantile_bit_without_noise': Cause(
    'the share of updates below the clip norm is used without noise: the clip '
    'norm tells on which side a client is',
    'Add Gaussian noise to the number of updates below the clip norm, and let '
    'the noise of the sum make up for it (Andrew et al. 2021, theorem 1).',
  ),
  'quantile_bits_by_weight': Cause(
    'updates below the clip norm are counted by their examples: one client with '
    'many sets the clip norm',
    'Count clients, or cap their weights and add noise for that.',
  ),
  'quantile_noise_too_small': Cause(
    'the noise of the quantile is too small, or not accounted for',
    'Give the sum z_Δ = (1/z² - 1/(2 σ_b)²)^(-1/2), where σ_b is the noise of '
    'the number of updates below the clip norm (Andrew et al. 2021, theorem 1).',
  ),
  'noise_replayed_after_restore': Cause(
    'the state of the generator is in the checkpoint, or noise depends on seed '
    'and round alone: a round that is run again with other clients has the same '
    'noise, and the difference of the two releases has none',
    'Mix fresh randomness of the operating system into the key at every start, or '
    'make sure that a round is repeated with the same clients and data.',
  ),
  'seeded_at_restore': Cause(
    'restoring seeds the generator by a constant, or by the seed of the run',
    'Seed from the operating system at every start.',
  ),
}
