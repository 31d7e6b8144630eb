// The random numbers of streams.py, drawn on the device from the same random words, with one launch for a whole
// request.
//
// The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw (2011), with the key (seed, chain) and the counter
// (block, use, operation, iteration), where `use` holds purpose, attempt and index. A block is the four words of one
// counter. Each thread runs its own rejection loop to the end, so the host never asks whether all threads are done.

struct Words {
  unsigned at[4];
};

// The place of a request's numbers in the stream: its counter without the number of the block.
struct Place {
  unsigned seed, use, operation, iteration;
};

constexpr int MAX_ATTEMPTS = 64;  // the same as in streams.py
constexpr unsigned ATTEMPT = 1u << 8;

template <int ROUNDS = 10>
__device__ __forceinline__ Words philox(Words counter, unsigned k0, unsigned k1) {
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    const unsigned long long product_0 = 0xD2511F53ull * counter.at[0], product_1 = 0xCD9E8D57ull * counter.at[2];
    counter = Words{{unsigned(product_1 >> 32) ^ counter.at[1] ^ k0, unsigned(product_1),
                     unsigned(product_0 >> 32) ^ counter.at[3] ^ k1, unsigned(product_0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

__device__ __forceinline__ Words words(const Place& place, unsigned chain, unsigned block, int attempt) {
  return philox(Words{{block, place.use | ATTEMPT * attempt, place.operation, place.iteration}}, place.seed, chain);
}

// A uniform number on (0, 1) from 52 bits, of the first (which = 0) or second (which = 1) half of the four words.
__device__ __forceinline__ double uniform_of(const Words& word, int which) {
  const double high = word.at[2 * which] >> 6, low = word.at[2 * which + 1] >> 6;
  return (high * 67108864.0 + low + 0.5) / 4503599627370496.0;
}

// The uniform number at place `number` of a chain's request.
__device__ __forceinline__ double uniform(const Place& place, unsigned chain, unsigned number, int attempt) {
  return uniform_of(words(place, chain, number / 2, attempt), number % 2);
}

#define PLACE_ARGUMENTS unsigned seed, unsigned use, unsigned operation, unsigned iteration
#define PLACE Place{seed, use, operation, iteration}
#define THIS_THREAD ((long long)blockIdx.x * blockDim.x + threadIdx.x)

// Uniform numbers on (0, 1); the shape of result is (n_chains, n).
extern "C" __global__ void uniforms(PLACE_ARGUMENTS, const unsigned long long* chains, int n_chains, int n,
                                    double* result) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * n) return;
  result[here] = uniform(PLACE, unsigned(chains[here / n]), unsigned(here % n), 0);
}

// Normal variables by Box and Muller; the shape of result is (n_chains, n). Numbers 2 k and 2 k + 1 of a chain come
// from block k of the stream, and each such block has a thread.
extern "C" __global__ void normals(PLACE_ARGUMENTS, const unsigned long long* chains, int n_chains, int n,
                                   double* result) {
  const int n_blocks = (n + 1) / 2;
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * n_blocks) return;
  const long long chain = here / n_blocks;
  const int block = int(here % n_blocks);
  const Words word = words(PLACE, unsigned(chains[chain]), unsigned(block), 0);
  const double radius = sqrt(-2 * log(uniform_of(word, 0))), angle = 6.283185307179586 * uniform_of(word, 1);
  result[chain * n + 2 * block] = radius * cos(angle);
  if (2 * block + 1 < n) result[chain * n + 2 * block + 1] = radius * sin(angle);
}

// Logarithms of Gamma(shape, rate 1) variables, Marsaglia and Tsang (2000), as in Streams.log_gamma; shapes and result
// are (n_chains, n). NaN after 64 rejections, which have a probability below 1e-80 unless the shape is NaN.
extern "C" __global__ void log_gammas(PLACE_ARGUMENTS, const unsigned long long* chains, int n_chains, int n,
                                      const double* shapes, double* result) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * n) return;
  const unsigned chain = unsigned(chains[here / n]), first = 2 * unsigned(here % n);
  const double a = shapes[here], d = (a < 1 ? a + 1 : a) - 1.0 / 3, c = 1 / sqrt(9 * d);
  double boost = 0, found = nan("");
  for (int attempt = 0; attempt < MAX_ATTEMPTS; ++attempt) {
    const Words one = words(PLACE, chain, first, attempt), two = words(PLACE, chain, first + 1, attempt);
    if (attempt == 0 && a < 1) boost = log(uniform_of(two, 1)) / a;
    const double z = sqrt(-2 * log(uniform_of(one, 0))) * cos(6.283185307179586 * uniform_of(one, 1));
    if (!(c * z > -1)) continue;
    const double log_v = 3 * log1p(c * z), v = exp(log_v);
    if (log(uniform_of(two, 0)) < z * z / 2 + d * (1 - v + log_v)) {
      found = log(d) + log_v;
      break;
    }
  }
  result[here] = found + boost;
}

// The log density -d (cosh z - 1) - a (exp z - 1 - z) at mode + z, as in the array code, and its slope below.
__device__ __forceinline__ double log_density(double z, double a, double d) {
  return -d * (cosh(z) - 1) - a * (expm1(z) - z);
}

__device__ __forceinline__ double log_density_slope(double z, double a, double d) {
  return -d * sinh(z) - a * expm1(z);
}

// Variables y with a density proportional to exp(a y - omega cosh y), Devroye (2014), as in the array code; a (>= 0),
// omega and result are (n_chains, n). NaN after 64 rejections.
extern "C" __global__ void hyperbolics(PLACE_ARGUMENTS, const unsigned long long* chains, int n_chains, int n,
                                       const double* as, const double* omegas, double* result) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * n) return;
  const unsigned chain = unsigned(chains[here / n]), first = 3 * unsigned(here % n);
  const double a = as[here], omega = omegas[here];
  const double d = omega * omega / (sqrt(omega * omega + a * a) + a);
  const double at_right = -log_density(1, a, d), at_left = -log_density(-1, a, d);
  const double t = at_right > 2 ? sqrt(2 / (d + a)) : at_right < 0.5 ? log(4 / (d + 2 * a)) : 1;
  double far = log1p((1 + sqrt(1 + 2 * d)) / d);
  if (a > 0 && 1 / a < far) far = 1 / a;
  const double s = at_left > 2 ? sqrt(4 / (d * cosh(1.0) + a)) : at_left < 0.5 ? far : 1;
  const double eta = -log_density(t, a, d), zeta = -log_density_slope(t, a, d);
  const double theta = -log_density(-s, a, d), xi = log_density_slope(-s, a, d);
  const double right = 1 / zeta, left = 1 / xi;
  const double top_right = t - right * eta, top_left = s - left * theta, top = top_right + top_left;
  double found = nan("");
  for (int attempt = 0; attempt < MAX_ATTEMPTS; ++attempt) {
    const double place = uniform(PLACE, chain, first, attempt) * (left + top + right);
    const double v = uniform(PLACE, chain, first + 1, attempt);
    double z = -top_left + left * log(v);
    if (place < top) z = -top_left + top * v;
    else if (place < top + right) z = top_right - right * log(v);
    double cover = 0;
    if (z > top_right) cover = -eta - zeta * (z - t);
    if (z < -top_left) cover = -theta + xi * (z + s);
    if (log(uniform(PLACE, chain, first + 2, attempt)) + cover <= log_density(z, a, d)) {
      found = z;
      break;
    }
  }
  result[here] = asinh(a / omega) + found;
}

// The alternating sum of a_n(x) over a_0(x), as in polya_gamma.py.
__device__ __forceinline__ double polya_gamma_series(double x) {
  const double exponent = x > 0.64 ? 4.934802200544679 * x : 2 / x;
  return 1 - 3 * exp(-2 * exponent) + 5 * exp(-6 * exponent) - 7 * exp(-12 * exponent);
}

// Variables omega ~ PG(1, z), Polson, Scott and Windle (2013) after Devroye (2009), as in
// model/likelihood/binary.py; z and result are (n_chains, n). NaN after 64 rejections.
extern "C" __global__ void polya_gammas(PLACE_ARGUMENTS, const unsigned long long* chains, int n_chains, int n,
                                        const double* zs, double* result) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * n) return;
  const unsigned chain = unsigned(chains[here / n]), first = 4 * unsigned(here % n);
  // TAIL is the probability that a normal variable lies beyond 1/sqrt(T).
  constexpr double PI = 3.141592653589793, T = 0.64, TAIL = 0.10564977366685525;
  const double c = fabs(zs[here]) / 2, rate = PI * PI / 8 + c * c / 2;
  const bool is_small = c < 1 / T;
  const double log_right = log(PI / (2 * rate)) - rate * T;
  const double log_left = is_small ? log(4 * TAIL) : log(2.0) - c;
  const double right_share = 1 / (1 + exp(log_left - log_right)), mean = is_small ? 1 : 1 / c;
  double found = nan("");
  for (int attempt = 0; attempt < MAX_ATTEMPTS; ++attempt) {
    const bool is_right = uniform(PLACE, chain, first, attempt) < right_share;
    const double u = uniform(PLACE, chain, first + 1, attempt), v = uniform(PLACE, chain, first + 2, attempt);
    double x, log_accept = 0;
    if (is_right) {
      x = T - log(u) / rate;
    } else if (is_small) {
      const double normal = normcdfinv(TAIL * u);
      x = 1 / (normal * normal);
      log_accept = -c * c * x / 2;
    } else {
      const double normal = normcdfinv(u), w = mean * normal * normal / 2;
      const double ratio = 1 / (1 + w + sqrt(w * (2 + w)));
      x = mean * (v * (1 + ratio) < 1 ? ratio : 1 / ratio);
      if (!(x < T)) continue;
    }
    if (uniform(PLACE, chain, first + 3, attempt) < exp(log_accept) * polya_gamma_series(x)) {
      found = x;
      break;
    }
  }
  result[here] = found / 4;
}

// The permutations that sort the values of each chain, (n_chains, n), with one thread for each value.
extern "C" __global__ void sorted_places(const double* values, int n_chains, int n, long long* result) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_chains * n) return;
  const long long start = here - here % n;
  int rank = 0;
  for (int other = 0; other < n; ++other) {
    const double value = values[start + other];
    rank += value < values[here] || (value == values[here] && other < here - start);
  }
  result[start + rank] = here - start;
}

// Orders made by swaps, (n_iterations, n_chains, n), as `shuffle` of streams.py has them: number k goes to a random
// place from 0 to k, and what was there goes to place k. Each order has a thread. Number 16 j + i of 64 takes word j of
// block i, so a thread draws the four words of each block again for each of the four numbers.
extern "C" __global__ void shuffles(PLACE_ARGUMENTS, const unsigned long long* chains, int n_chains, int n,
                                    int n_iterations, int* result) {
  const long long here = THIS_THREAD;
  if (here >= (long long)n_iterations * n_chains) return;
  const unsigned chain = unsigned(chains[here % n_chains]), at_iteration = iteration + unsigned(here / n_chains);
  int* order = result + here * n;
  for (int k = 0; k < n; ++k) {
    const unsigned block = unsigned(k / 64 * 16 + k % 16);
    const Words drawn = philox<7>(Words{{block, use, operation, at_iteration}}, seed, chain);
    const int at = int((unsigned long long)drawn.at[k / 16 % 4] * unsigned(k + 1) >> 32);
    order[k] = order[at];
    order[at] = k;
  }
}
