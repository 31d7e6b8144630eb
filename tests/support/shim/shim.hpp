// Enough of CUDA for g++ to run the kernels on a CPU, so that their logic can be tested without a device.
//
// Blocks run one after another. The threads of a block are fibers of one thread: each runs until it comes to a
// barrier or shuffle, then the next one in turn, in an order that the test chooses. A kernel without races gives
// the same bits in every order; one that lacks a barrier does not. What it cannot show: how fast a kernel is, and
// how the device's own fast functions round.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)

struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace shim {

constexpr size_t STACK = 384 * 1024;
constexpr int WARP = 32;

// A group of fibers that wait for each other: a block or a warp.
struct Group {
  int n_alive = 0, n_arrived = 0;
  long generation = 0;
};

// A place in the code with its stack, for GCC's own setjmp, which is faster than the C library's.
typedef void* Place[5];

__attribute__((noinline)) void go_to(Place& place) { __builtin_longjmp(place, 1); }

struct Fiber {
  Place here;
  char* stack = nullptr;
  bool is_started = false, is_done = false;
  Group* waits_for = nullptr;
  long generation = 0;
  double slot = 0;  // what it gives away in a shuffle
};

static std::vector<Fiber> fibers;
static std::vector<Group> warps;
static Group block;
static Place scheduler;
static ucontext_t scheduler_context;
static std::function<void()> kernel;
static int current;
static std::vector<unsigned char> memory;

inline void release_if_complete(Group& group) {
  if (group.n_alive > 0 && group.n_arrived == group.n_alive) {
    group.n_arrived = 0;
    ++group.generation;
  }
}

inline void wait(Group& group) {
  Fiber& fiber = fibers[current];
  fiber.waits_for = &group;
  fiber.generation = group.generation;
  ++group.n_arrived;
  release_if_complete(group);
  if (__builtin_setjmp(fiber.here) == 0) go_to(scheduler);
}

// A fiber runs the kernel as one thread of a block, then of the next, as starting a fiber takes two system calls.
inline void run_fiber() {
  for (;;) {
    kernel();
    Fiber& fiber = fibers[current];
    fiber.is_done = true;
    for (Group* group : {&block, &warps[current / WARP]}) {
      --group->n_alive;
      release_if_complete(*group);
    }
    if (__builtin_setjmp(fiber.here) == 0) go_to(scheduler);
  }
}

inline bool can_run(const Fiber& fiber) {
  return !fiber.is_done && (fiber.waits_for == nullptr || fiber.waits_for->generation != fiber.generation);
}

// Switch to a fiber until it waits or ends.
inline void resume(int number, int n_threads) {
  Fiber& fiber = fibers[number];
  current = number;
  threadIdx.x = number;
  fiber.waits_for = nullptr;
  if (__builtin_setjmp(scheduler) != 0) return;
  if (fiber.is_started) go_to(fiber.here);
  fiber.is_started = true;
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber.stack;
  start.uc_stack.ss_size = STACK - number % 128 * 11 * 64;  // tops of stacks come into different sets of the caches
  start.uc_link = nullptr;
  makecontext(&start, run_fiber, 0);
  setcontext(&start);
}

// Which fiber comes at a place of a round: in order, backwards, or jumping about.
inline int fiber_at(int place, int n_threads, int order) {
  if (order == 0) return place;
  if (order == 1) return n_threads - 1 - place;
  return int((long(place) * 37 + order * 11) % n_threads);  // n_threads is a multiple of 32: 37 has no factor of it
}

inline int launch(int n_blocks, int n_threads, size_t shared_bytes, int order, std::function<void()> body) {
  kernel = body;
  blockDim.x = n_threads;
  gridDim.x = n_blocks;
  if (int(fibers.size()) < n_threads) {
    fibers.resize(n_threads);
    for (Fiber& fiber : fibers) {
      if (fiber.stack == nullptr) fiber.stack = static_cast<char*>(malloc(STACK));
    }
  }
  for (int number = 0; number < n_blocks; ++number) {
    blockIdx.x = number;
    memory.assign(shared_bytes + 64, 0xFF);  // NaN, until something is written
    block = Group{n_threads, 0, 0};
    warps.assign((n_threads + WARP - 1) / WARP, Group{});
    for (int thread = 0; thread < n_threads; ++thread) {
      ++warps[thread / WARP].n_alive;
      fibers[thread].is_done = false;
      fibers[thread].waits_for = nullptr;
    }
    for (int n_done = 0; n_done < n_threads;) {
      bool is_stuck = true;
      for (int place = 0; place < n_threads; ++place) {
        const int thread = fiber_at(place, n_threads, order);
        if (!can_run(fibers[thread])) continue;
        is_stuck = false;
        resume(thread, n_threads);
        n_done += fibers[thread].is_done;
      }
      if (is_stuck) {  // threads wait for others that will never come
        for (Fiber& fiber : fibers) fiber.is_started = false;
        return 1;
      }
    }
  }
  return 0;
}

template <class... Types, size_t... places>
void call(void (*function)(Types...), void** arguments, std::index_sequence<places...>) {
  function(*static_cast<Types*>(arguments[places])...);
}

template <class... Types>
int launch_with(void (*function)(Types...), int n_blocks, int n_threads, size_t shared_bytes, int order,
                void** arguments) {
  return launch(n_blocks, n_threads, shared_bytes, order,
                [=] { call(function, arguments, std::index_sequence_for<Types...>()); });
}

// The types of a kernel's parameters, as NumPy writes dtypes, with a star behind those of arrays.
template <class T> constexpr const char* kind = "unknown";
template <> constexpr const char* kind<bool> = "?";
template <> constexpr const char* kind<int> = "i";
template <> constexpr const char* kind<unsigned> = "I";
template <> constexpr const char* kind<long long> = "l";
template <> constexpr const char* kind<unsigned long long> = "L";
template <> constexpr const char* kind<float> = "f";
template <> constexpr const char* kind<double> = "d";

template <class... Types> const char* kinds_of(void (*)(Types...)) {
  static const std::string all = ((std::string(kind<std::remove_cv_t<std::remove_pointer_t<Types>>>) +
                                   (std::is_pointer_v<Types> ? "* " : " ")) + ...);
  return all.c_str();
}

inline unsigned char* dynamic_memory() {
  return memory.data() + (64 - reinterpret_cast<size_t>(memory.data()) % 64) % 64;
}

}  // namespace shim

#define DYNAMIC_SHARED_MEMORY(name) unsigned char* name = shim::dynamic_memory()

inline void __syncthreads() { shim::wait(shim::block); }
inline void __syncwarp() { shim::wait(shim::warps[shim::current / shim::WARP]); }

template <class T> T __shfl_xor_sync(unsigned, T value, int distance) {
  const int self = shim::current;
  shim::fibers[self].slot = value;
  __syncwarp();
  const T given = T(shim::fibers[self ^ distance].slot);
  __syncwarp();
  return given;
}

inline float __logf(float x) { return logf(x); }
#define FAST_FUNCTIONS
inline float power_of_two(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1 / x; }

// The quantile of a normal variable: halving, then Newton's steps, in the lower half where erfc loses nothing.
inline double normcdfinv(double p) {
  if (!(p > 0 && p < 1)) return p == 0 ? -INFINITY : p == 1 ? INFINITY : NAN;
  if (p > 0.5) return -normcdfinv(1 - p);
  double low = -40, high = 0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (erfc(-middle * M_SQRT1_2) / 2 < p ? low : high) = middle;
  }
  double x = (low + high) / 2;
  for (int i = 0; i < 2; ++i) x -= (erfc(-x * M_SQRT1_2) / 2 - p) / (exp(-x * x / 2) * M_2_SQRTPI * M_SQRT1_2 / 2);
  return x;
}
