// The element-wise parts of a large network's pass, between the matrix products of network_pass.py. There is one thread
// for each unit at each case, or for each case of a chain.

// If the outputs are integrated out, N_OUTPUTS is 0 and no kernel with an array of outputs is called.
constexpr int MOST_OUTPUTS = N_OUTPUTS > 0 ? N_OUTPUTS : 1;

#define THIS_THREAD ((long long)blockIdx.x * blockDim.x + threadIdx.x)

template <bool is_exact>
__device__ __forceinline__ void activate_at(int layer, real* u, real* slope, long long place) {
  each<1, OUTPUT_LAYER>([&](auto number) {
    constexpr int LAYER = decltype(number)::value;
    if (layer == LAYER) {
      typedef LaneFor<is_exact> L;
      constexpr int A = activation_of(LAYER);
      static_assert(A >= IDENTITY && A <= SIN, "an activation that arithmetic.hpp does not know");
      real kept;
      const real v = activate<L>(A, u[place], kept);
      u[place] = v;
      if constexpr (!is_exact) slope[place] = has_kept_slope(A) ? kept : slope_of<L>(A, v);
    }
  });
}

// Replaces the n summed inputs u of a hidden layer by its values, and computes their slopes.
extern "C" __global__ void activate_for_force(int layer, real* u, real* slope, long long n) {
  const long long here = THIS_THREAD;
  if (here < n) activate_at<false>(layer, u, slope, here);
}

extern "C" __global__ void activate_for_energy(int layer, real* u, long long n) {
  const long long here = THIS_THREAD;
  if (here < n) activate_at<true>(layer, u, nullptr, here);
}

// The outputs have the shape (n_chains, N_OUTPUTS, n), at the cases begin .. begin + n - 1. Targets are those of all
// n_cases.
#define OUTPUT_ARGUMENTS                                                                                    \
  const double *noise, const real *rows, const double *exact, const double *weights, long long row_stride,    \
      long long weight_stride, int n_chains, int n_cases, int begin, int n

// Replaces the outputs by -factor d log likelihood / d outputs; the shape of factor is (n_chains,).
extern "C" __global__ void slopes_of_outputs(real* outputs, const double* factor, OUTPUT_ARGUMENTS) {
  const long long here = THIS_THREAD, chain = here / n;
  const int number = int(here % n);
  if (chain >= n_chains) return;
  const Targets targets = TARGETS_OF(chain);
  real* place = outputs + chain * N_OUTPUTS * n + number;
  real v[MOST_OUTPUTS];
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) v[o] = place[(long long)o * n];
  slopes_of_case(v, targets, begin + number, real(factor[chain]));
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) place[(long long)o * n] = v[o];
}

// The log likelihood of each case; the shape of terms is (n_chains, n).
extern "C" __global__ void terms_of_outputs(const real* outputs, double* terms, OUTPUT_ARGUMENTS) {
  const long long here = THIS_THREAD, chain = here / n;
  const int number = int(here % n);
  if (chain >= n_chains) return;
  const Targets targets = TARGETS_OF(chain);
  const real* place = outputs + chain * N_OUTPUTS * n + number;
  real v[MOST_OUTPUTS];
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) v[o] = place[(long long)o * n];
  terms[here] = terms_of_case(v, targets, begin + number);
}

// Adds the prior's gradient to that of the data, with one thread for each of the n_chains * N_PARAMETERS parameters.
extern "C" __global__ void add_prior(const real* position, const double* precisions, real* gradient, int n_chains) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * N_PARAMETERS) return;
  gradient[here] += real(prior_slope(position[here], precisions[here], prior_alpha_of(int(here % N_PARAMETERS))));
}

// The prior's energy of each parameter, with one thread for each.
extern "C" __global__ void prior_energies(
    const real* position, const double* precisions, double* energy, int n_chains) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * N_PARAMETERS) return;
  energy[here] = prior_term(position[here], precisions[here], prior_alpha_of(int(here % N_PARAMETERS)));
}
