// Whole trajectories of tiny networks: a warp for each chain, and a case at a time in each of its threads.
//
// The gradient of a thread's cases stays in its registers; at the end of a pass the 32 threads add theirs
// up so that each ends with its share of the parameters, for which it alone holds momentum, stepsize and
// prior. Positions are in shared memory, from where all threads read the same weight at a time. Warps do not
// wait for each other, and nothing but cases is read from device memory inside a trajectory.

constexpr int OWN = (N_PARAMETERS + WARP - 1) / WARP;  // parameters that a thread holds: its number * OWN ...
constexpr int PADDED = OWN * WARP;

// A unit's place in a case's array of all units, inputs first.
__host__ __device__ constexpr int place_of(int layer) {
  int place = 0;
  for (int before = 0; before < layer; ++before) place += units_of(before);
  return place;
}

constexpr int N_UNITS = place_of(N_LAYERS);

// Sums u of a layer's units from the values of the layers before, eq. 1 to 3.
template <int LAYER> __device__ __forceinline__ void summed_inputs(const real* w, const real* value, real* u) {
  constexpr int N = units_of(LAYER);
#pragma unroll
  for (int unit = 0; unit < N; ++unit) u[unit] = 0;
  each<0, N_LINKS>([&](auto number) {
    constexpr int K = decltype(number)::value;
    if constexpr (link_destination(K) == LAYER) {
#pragma unroll
      for (int row = 0; row < link_units(K); ++row) {
#pragma unroll
        for (int unit = 0; unit < N; ++unit) {
          u[unit] += w[link_start(K) + row * N + unit] * value[place_of(link_source(K)) + row];
        }
      }
      if constexpr (link_rows(K) > link_units(K)) {
#pragma unroll
        for (int unit = 0; unit < N; ++unit) u[unit] += w[link_start(K) + link_units(K) * N + unit];
      }
    }
  });
}

// One case forward: value of every unit as its destinations see it (with offsets), and its slope.
template <bool is_exact>
__device__ __forceinline__ void forward(const real* w, const real* inputs, int n_cases, int number, real* value,
                                        real* slope) {
#pragma unroll
  for (int i = 0; i < units_of(0); ++i) {
    value[i] = inputs[i * n_cases + number];
    if constexpr (offset_of(0) >= 0) value[i] += w[offset_of(0) + i];
  }
  each<1, N_LAYERS>([&](auto layer) {
    constexpr int LAYER = decltype(layer)::value;
    constexpr int PLACE = place_of(LAYER);
    real u[units_of(LAYER)];
    summed_inputs<LAYER>(w, value, u);
#pragma unroll
    for (int unit = 0; unit < units_of(LAYER); ++unit) {
      if constexpr (LAYER == OUTPUT_LAYER) {
        value[PLACE + unit] = u[unit];
      } else {
        value_and_slope<activation_of(LAYER), is_exact>(u[unit], value[PLACE + unit], slope[PLACE + unit]);
        if constexpr (offset_of(LAYER) >= 0) value[PLACE + unit] += w[offset_of(LAYER) + unit];
      }
    }
  });
}

// One case backward, eqs. 41 to 43 and 50 to 57: adds to the gradient of all parameters. The outputs' entries
// of `value` hold the derivatives with respect to them.
__device__ __forceinline__ void backward(const real* w, real* value, real* slope, real* gradient) {
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) {
    slope[place_of(OUTPUT_LAYER) + o] = value[place_of(OUTPUT_LAYER) + o];
  }
  each_down<OUTPUT_LAYER, 0>([&](auto layer) {
    constexpr int LAYER = decltype(layer)::value;
    constexpr int PLACE = place_of(LAYER);
    if constexpr (LAYER < OUTPUT_LAYER && (LAYER > 0 || offset_of(0) >= 0)) {
#pragma unroll
      for (int unit = 0; unit < units_of(LAYER); ++unit) {
        real derivative = 0;  // with respect to the unit's value
        each<0, N_LINKS>([&](auto number) {
          constexpr int K = decltype(number)::value;
          if constexpr (link_source(K) == LAYER && link_units(K) > 0) {
            constexpr int N = units_of(link_destination(K));
#pragma unroll
            for (int to = 0; to < N; ++to) {
              derivative += w[link_start(K) + unit * N + to] * slope[place_of(link_destination(K)) + to];
            }
          }
        });
        if constexpr (offset_of(LAYER) >= 0) gradient[offset_of(LAYER) + unit] += derivative;
        if constexpr (LAYER > 0) slope[PLACE + unit] *= derivative;
      }
    }
    each<0, N_LINKS>([&](auto number) {
      constexpr int K = decltype(number)::value;
      if constexpr (link_destination(K) == LAYER) {
        constexpr int N = units_of(LAYER);
#pragma unroll
        for (int unit = 0; unit < N; ++unit) {
#pragma unroll
          for (int row = 0; row < link_units(K); ++row) {
            gradient[link_start(K) + row * N + unit] +=
                value[place_of(link_source(K)) + row] * slope[PLACE + unit];
          }
          if constexpr (link_rows(K) > link_units(K)) {
            gradient[link_start(K) + link_units(K) * N + unit] += slope[PLACE + unit];
          }
        }
      }
    });
  });
}

// Sums over the warp's threads of COUNT values each, thread t ending with values t * OWN .. in v[0 .. OWN - 1].
// At each step a thread keeps half of its values and gives the other half away: COUNT exchanges in all, where
// one sum after another would take 5 COUNT.
template <int COUNT, int DISTANCE> __device__ __forceinline__ void share_sums(real* v, int thread) {
  if constexpr (DISTANCE > 0) {
    constexpr int HALF = COUNT / 2;
    const bool keeps_upper = (thread & DISTANCE) != 0;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const real kept = keeps_upper ? v[i + HALF] : v[i];
      const real given = keeps_upper ? v[i] : v[i + HALF];
      v[i] = kept + __shfl_xor_sync(ALL_THREADS, given, DISTANCE);
    }
    share_sums<HALF, DISTANCE / 2>(v, thread);
  }
}

// Registers for three blocks on a multiprocessor (two in float64): measured, more blocks would spill on 2-16-2.
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(real) == 4 ? 3 : 2) advance(KERNEL_ARGUMENTS) {
  const int thread = threadIdx.x % WARP;
  const long long chain = (long long)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
  __shared__ real positions[THREADS / WARP][PADDED];
  real* w = positions[threadIdx.x / WARP];
  if (chain >= n_chains) return;  // the whole warp: nothing below waits for the block

  const long long vector = chain * N_PARAMETERS;
  const int first = thread * OWN;
  const Targets targets = TARGETS_OF(chain);
  const real factor = real(n_partitions * inverse_temperature[chain]);
  real p[OWN], full[OWN];
  double tau[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const bool is_own = first + i < N_PARAMETERS;
    w[first + i] = is_own ? position[vector + first + i] : real(0);
    p[i] = is_own ? momentum[vector + first + i] : real(0);
    full[i] = is_own ? stepsizes[vector + first + i] / n_partitions : real(0);
    tau[i] = is_own ? precisions[vector + first + i] : 0.0;
  }
  __syncwarp();

  const int last = n_steps * n_partitions;
  for (int sub_step = 0; sub_step <= last; ++sub_step) {
    if (sub_step > 0) {
#pragma unroll
      for (int i = 0; i < OWN; ++i) w[first + i] += full[i] * p[i];
      __syncwarp();
    }
    const int part = n_partitions > 1 ? order[chain * n_partitions + sub_step % n_partitions] : 0;
    const int begin = int((long long)n_cases * part / n_partitions);
    const int end = int((long long)n_cases * (part + 1) / n_partitions);
    real gradient[PADDED];
#pragma unroll
    for (int i = 0; i < PADDED; ++i) gradient[i] = 0;
#pragma unroll 1  // more cases at once would take the registers of other warps
    for (int number = begin + thread; number < end; number += WARP) {
      real value[N_UNITS], slope[N_UNITS];
      asm volatile("" ::: "memory");  // weights are read again: kept over cases, they fill all registers
      forward<false>(w, inputs, n_cases, number, value, slope);
      slopes_of_case(value + place_of(OUTPUT_LAYER), targets, number, factor);
      backward(w, value, slope, gradient);
    }
    share_sums<PADDED, WARP / 2>(gradient, thread);
    __syncwarp();  // all have read the positions that are moved next
    const bool is_end = sub_step == 0 || sub_step == last;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      gradient[i] += real(prior_slope(w[first + i], tau[i], prior_alpha_of(first + i)));
      p[i] -= (is_end ? full[i] / 2 : full[i]) * gradient[i];
    }
  }

  double terms_here = 0, prior_here = 0;
  for (int number = thread; number < n_cases; number += WARP) {
    real value[N_UNITS], slope[N_UNITS];
    forward<true>(w, inputs, n_cases, number, value, slope);
    terms_here += terms_of_case(value + place_of(OUTPUT_LAYER), targets, number);
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    if (first + i < N_PARAMETERS) {
      prior_here += prior_term(w[first + i], tau[i], prior_alpha_of(first + i));
      position[vector + first + i] = w[first + i];
      momentum[vector + first + i] = p[i];
    }
  }
  terms_here = sum_over_warp(terms_here);
  prior_here = sum_over_warp(prior_here);
  if (thread == 0) {
    terms[chain] = terms_here;
    prior_energy[chain] = prior_here;
  }
}
