// The data of a chain whose target is a posterior, which warp.cu and block.cu run.
//
//   precisions                     (n_chains, N_PARAMETERS), those of each parameter's prior
//   noise                          (n_chains, N_TARGETS), the noise precisions
//   inverse_temperature            (n_chains,)
//   inputs                         (n_inputs + 1, n_cases)
//   rows, exact                    (n_rows, n_cases) for each chain, row_stride apart (0 if all chains share them)
//   weights                        (N_TARGETS, n_cases) for each chain, weight_stride apart (0 if all share them)
//   order                          (n_chains, n_partitions), read only if n_partitions > 1
#define DATA_ARGUMENTS                                                                                              \
  const double *precisions, const double *noise, const double *inverse_temperature, const real *inputs,             \
      const real *rows, const double *exact, const double *weights, const int *order, long long row_stride,         \
      long long weight_stride, int n_cases, int n_partitions

// The cases begin .. end - 1.
struct Cases {
  int begin, end;
};

struct ChainData {
  const double* precisions;
  const real* inputs;
  Targets targets;
  const int* order;
  double inverse_temperature;
  real factor;  // of the likelihood's gradient in a sub-step
  int n_cases, n_partitions;

  // The cases of a sub-step; backwards, the orders of the steps are reversed behind their first.
  __device__ __forceinline__ Cases cases_at(const Piece& piece, int sub_step) const {
    if (n_partitions == 1) return {0, n_cases};  // divisions of 64 bits take as long as a case
    const int place = sub_step % n_partitions;
    const int part = order[piece.is_backwards && place > 0 ? n_partitions - place : place];
    return {int((long long)n_cases * part / n_partitions), int((long long)n_cases * (part + 1) / n_partitions)};
  }
  __device__ __forceinline__ double potential(const Energy& energy, double constant) const {
    return energy.prior - inverse_temperature * (energy.terms + constant);
  }
};

#define DATA_OF(chain)                                                                                              \
  ChainData {                                                                                                       \
    precisions + (chain) * N_PARAMETERS, inputs, TARGETS_OF(chain), order + (chain) * n_partitions,                 \
        inverse_temperature[chain], real(n_partitions * inverse_temperature[chain]), n_cases, n_partitions          \
  }
