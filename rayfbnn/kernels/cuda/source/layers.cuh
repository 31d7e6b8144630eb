// Shared by the kernels between products: biases of units, which slopes are stored, and the arguments about outputs.

// If the outputs are integrated out, N_OUTPUTS is 0 and no kernel with an array of outputs is called.
constexpr int MOST_OUTPUTS = N_OUTPUTS > 0 ? N_OUTPUTS : 1;

#define THIS_THREAD ((long long)blockIdx.x * blockDim.x + threadIdx.x)

// The sum of a unit's biases; w are the parameters of its chain.
template <int LAYER> __device__ __forceinline__ real bias_of(const real* w, int unit) {
  real bias = 0;
  each<0, N_LINKS>([&](auto number) {
    constexpr int K = decltype(number)::value;
    if constexpr (link_destination(K) == LAYER && link_rows(K) > link_units(K))
      bias += w[link_start(K) + link_units(K) * units_of(LAYER) + unit];
  });
  return bias;
}

// Adds a number to the gradient of a unit's biases.
template <int LAYER> __device__ __forceinline__ void add_to_biases(real* gradient, int unit, real amount) {
  each<0, N_LINKS>([&](auto number) {
    constexpr int K = decltype(number)::value;
    if constexpr (link_destination(K) == LAYER && link_rows(K) > link_units(K))
      gradient[link_start(K) + link_units(K) * units_of(LAYER) + unit] += amount;
  });
}

// True if a layer's slopes are stored; otherwise they follow from the values. pass_kernels.py has the same rule.
__host__ __device__ constexpr bool stores_slopes(int layer) {
  return has_kept_slope(activation_of(layer)) || offset_of(layer) >= 0;
}

// The outputs have the shape (n_chains, N_OUTPUTS, n), at the cases begin .. begin + n - 1, and lack biases. Targets are
// those of all n_cases.
#define OUTPUT_ARGUMENTS                                                                                    \
  const real *position, const double *noise, const real *rows, const double *exact, const double *weights,    \
      long long row_stride, long long weight_stride, int n_chains, int n_cases, int begin, int n
