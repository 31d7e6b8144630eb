// A whole update by hybrid Monte Carlo in one launch: the trajectory, the choice of a state in each of its windows, and
// the decision. It does the same as `hybrid` of mcmc/hybrid.py in array code, which has the formulas.
//
//   position, momentum, stepsizes  (n_chains, N_PARAMETERS), at the current state
//   new_position, new_momentum     (n_chains, N_PARAMETERS), the results; until the end, the state of the reject window
//   memory                         (n_chains, 4, N_PARAMETERS): positions and momenta where the trajectory is, and of
//                                  the state of the accept window
//   windows                        (n_chains, 8), memory for Windows
//   accepted, energy_change, diverged  (n_chains,), the results
//   constant                       (n_chains,), the part of the potential that is not in the energies of a piece
//   of_offset, of_decision         (n_chains,) uniform numbers
//   of_states                      (n_chains, n_states) uniform numbers, one for each state that is considered
//   steps, window, jump            a state is considered after every jump leapfrog steps; the others count such states

__device__ __forceinline__ double infinite() { return -::log(0.0); }

// A window so far: log sum exp(-H) over its states, and the largest -H + Gumbel noise. Its state is kept.
struct Window {
  double log_weight, best_score, is_kept;

  __device__ __forceinline__ void add(bool is_member, double minus_energy, double gumbel) {
    is_kept = is_member && minus_energy + gumbel > best_score;
    if (is_kept) best_score = minus_energy + gumbel;
    const double other = is_member ? minus_energy : -infinite();
    const double high = log_weight < other ? other : log_weight, low = log_weight < other ? log_weight : other;
    log_weight = low == -infinite() ? high : high + ::log1p(::exp(low - high));
  }
};

struct Windows {
  Window reject, accept;
  double is_finite_at_start, has_diverged;
};

__device__ __forceinline__ void wait_for_chain() {
  if constexpr (CHAIN_THREADS == WARP) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// The leapfrog steps, in units of jump, from the state after `done` to the next one that is considered.
__device__ __forceinline__ int steps_to_next(int done, int steps, int window) {
  const int to_accept_window = steps - window + 1 - done;
  return done == window - 1 && to_accept_window > 1 ? to_accept_window : 1;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) hybrid(
    const real* position, const real* momentum, const real* stepsizes, real* new_position, real* new_momentum,
    real* memory, double* windows, bool* accepted, double* energy_change, bool* diverged, const double* constant,
    const double* of_offset, const double* of_states, const double* of_decision, int n_chains, int n_states, int steps,
    int window, int jump, DATA_ARGUMENTS) {
  const long long chain = chain_here(), vector = chain * N_PARAMETERS;
  if (chain >= n_chains) return;  // all threads of a warp alike
  real *here_q = memory + 4 * vector, *here_p = here_q + N_PARAMETERS;
  real *accept_q = here_p + N_PARAMETERS, *accept_p = accept_q + N_PARAMETERS;
  Windows& of_chain = reinterpret_cast<Windows*>(windows)[chain];
  const int offset = int(of_offset[chain] * window);

#pragma unroll 1
  for (int seen = 0, done = 0; seen == 0 || done < steps; ++seen) {
    const int n_steps = seen == 0 ? 0 : steps_to_next(done, steps, window);
    const bool is_from_start = done == 0 || done == offset, is_backwards = offset > done;
    Energy energy = {0, 0};
    run_piece({is_from_start ? position + vector : here_q, is_from_start ? momentum + vector : here_p,
               stepsizes + vector, here_q, here_p, n_steps * jump, is_backwards},
              DATA_OF(chain), energy);
    done += n_steps;
    const int place = is_backwards ? offset - done : done;
    // A piece without steps leaves a momentum of no use.
    const real* q = seen == 0 ? position + vector : here_q;
    const real* p = seen == 0 ? momentum + vector : here_p;
    double kinetic = 0;
    each_parameter([&](int parameter) { kinetic += double(p[parameter]) * double(p[parameter]); });
    energy.prior += kinetic / 2;
    sum_over_chain(energy);
    if (thread_of_chain() == 0) {
      const double total = (DATA_OF(chain)).potential(energy, constant[chain]);
      const double minus_energy = isfinite(total) ? -total : -infinite();
      const double gumbel = -::log(-::log(of_states[chain * n_states + seen]));
      const Window empty = {-infinite(), -infinite(), 0};
      if (seen == 0) of_chain = {empty, empty, double(isfinite(total)), 0};
      if (seen > 0 && !isfinite(total)) of_chain.has_diverged = 1;
      of_chain.reject.add(place < window, minus_energy, gumbel);
      of_chain.accept.add(place > steps - window, minus_energy, gumbel);
    }
    wait_for_chain();
    if (seen == 0 || of_chain.reject.is_kept) {
      each_parameter([&](int parameter) {
        new_position[vector + parameter] = q[parameter];
        new_momentum[vector + parameter] = p[parameter];
      });
    }
    if (of_chain.accept.is_kept) {
      each_parameter([&](int parameter) {
        accept_q[parameter] = q[parameter];
        accept_p[parameter] = p[parameter];
      });
    }
  }

  const double change = of_chain.reject.log_weight - of_chain.accept.log_weight;
  const bool is_accepted = ::log(of_decision[chain]) < -change;
  if (is_accepted) {
    each_parameter([&](int parameter) {
      new_position[vector + parameter] = accept_q[parameter];
      new_momentum[vector + parameter] = -accept_p[parameter];
    });
  }
  if (thread_of_chain() == 0) {
    accepted[chain] = is_accepted;
    energy_change[chain] = of_chain.is_finite_at_start ? change : infinite() - infinite();
    diverged[chain] = of_chain.has_diverged;
  }
}
