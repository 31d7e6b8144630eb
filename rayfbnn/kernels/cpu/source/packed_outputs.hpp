// The targets at packs of cases: the likelihood's terms and the derivatives by the outputs (eqs. 8, 10-12, 37-40).
#ifndef RAYFBNN_PACKED_OUTPUTS_HPP
#define RAYFBNN_PACKED_OUTPUTS_HPP

#include <string.h>

#include "packed_layout.hpp"

namespace RAYFBNN_NAMESPACE {

// The targets of the current chain, with the weights of their terms, laid out as the inputs are.
template <class S>
struct PackedTargets {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;

    const Job& job;
    const int n_outputs, n_targets, n_rows;
    Buffer<L> targets;  // rows (n_rows, packs of a block), block after block, partition after partition
    Buffer<L> weights;  // rows (n_targets, packs of a block) in the same order, or null if all weights are 1
    Buffer<S> scales, taus, log_taus;  // (n_outputs,): as output_slopes wants them
    int chain = 0;
    // The caller's, in double: (n_rows, n_cases) and (n_targets, n_cases).
    const double *given_targets = nullptr, *given_weights = nullptr;

    explicit PackedTargets(const Job& job)
        : job(job),
          n_outputs(job.network->units[job.network->n_layers - 1]),
          n_targets(job.network->n_targets),
          n_rows(job.network->n_rows) {
        long n_packs = 0;
        for (int k = 0; k < job.n_partitions; ++k) n_packs += job.partitions[k].n_packs;
        targets = Buffer<L>(n_packs * n_rows);
        if (job.weights) weights = Buffer<L>(n_packs * n_targets);
        scales = Buffer<S>(n_outputs), taus = Buffer<S>(n_outputs), log_taus = Buffer<S>(n_outputs);
    }

    void begin_chain(int number) {
        chain = number;
        set_scales(job.powers[chain] * job.n_partitions);
        given_targets = job.targets + chain * job.targets_step;
        if (job.weights) given_weights = job.weights + chain * job.weights_step;
        if (job.shuffles) return;
        if (chain == 0 || job.targets_step) lay_out(targets, given_targets, n_rows);
        if (weights && (chain == 0 || job.weights_step)) lay_out(weights, given_weights, n_targets);
    }

    // The likelihood counts `power` times.
    void set_scales(double power) {
        const int model = job.network->model;
        for (int o = 0; o < n_outputs; ++o) {
            const bool is_real = model == GAUSSIAN || model == STUDENT_T;
            const double tau = job.network->has_taus() ? job.noise[long(chain) * n_targets + o] : 1;
            scales[o] = S(is_real ? power * tau : power), taus[o] = S(tau), log_taus[o] = S(RAYFBNN_LOG(tau));
        }
    }

    // Lets the n cases of a batch stand for all cases.
    void begin_batch(int n) { set_scales(job.powers[chain] * (double(job.n_all) / n)); }

    // Rows (n, n_cases) in packs, the last pack of a partition filled up with its last case.
    void lay_out(L* packs, const double* rows, int n) const {
        S* place = reinterpret_cast<S*>(packs);
        for (int k = 0; k < job.n_partitions; ++k) {
            const Partition& partition = job.partitions[k];
            for (int b = 0; b < partition.n_blocks; ++b)
                for (int o = 0; o < n; ++o)
                    for (int c = partition.block_starts[b] * W; c < partition.block_starts[b + 1] * W; ++c) {
                        const int number = c < partition.n_cases ? c : partition.n_cases - 1;
                        *place++ = S(rows[long(o) * job.n_cases + partition.first + number]);
                    }
        }
    }
};

// --- the likelihood's terms ---

// A pack of doubles of cases, as log_likelihood_terms wants it: n_here cases, and zeros or copies of cases behind them.
// Rows of targets and weights are target_step apart; those of a batch are in packs, and so of type S.
template <class S, class T>
struct CasesOfPack {
    const S* outputs;
    const T *targets, *weights;
    const double* noise;
    long step, target_step;
    int n_targets, n_here;
    double noise_alpha;

    RAYFBNN_METHOD PackDouble output(int o) const { return doubles_of(outputs + o * step); }
    RAYFBNN_METHOD PackDouble target(int o) const { return here(targets + o * target_step); }
    RAYFBNN_METHOD PackDouble second(int o) const { return target(n_targets + o); }
    RAYFBNN_METHOD PackDouble weight(int o) const {
        return weights ? here(weights + (o % n_targets) * target_step) : splat<PackDouble>(1);
    }
    RAYFBNN_METHOD double tau(int o) const { return noise[o]; }
    RAYFBNN_METHOD double log_tau(int o) const { return RAYFBNN_LOG(noise[o]); }
    RAYFBNN_METHOD double alpha() const { return noise_alpha; }

    RAYFBNN_METHOD PackDouble here(const double* places) const { return doubles_of(places, n_here); }
    RAYFBNN_METHOD PackDouble here(const float* places) const { return doubles_of(places); }
};

// The terms of n cases, starting at `all`, summed in the places of a pack. The compiler knows the size that every pack
// but the last reads.
template <int MODEL, class S, class T>
inline PackDouble terms_of_cases(const CasesOfPack<S, T>& all, int n_outputs, int n) {
    typedef Lane<PackDouble> D;
    const auto terms_at = [&](int first, int n_here) {
        CasesOfPack<S, T> cases = all;
        cases.outputs += first, cases.targets += first, cases.n_here = n_here;
        if (cases.weights) cases.weights += first;
        return log_likelihood_terms<D>(MODEL, n_outputs, cases);
    };
    PackDouble sum = {};
    int first = 0;
    for (; first + D::width <= n; first += D::width) sum += terms_at(first, D::width);
    if (first == n) return sum;
    const PackDouble of_places = terms_at(first, n - first);
    PackDouble of_last = {};
    memcpy(&of_last, &of_places, (n - first) * sizeof(double));
    return sum + of_last;
}

// Adds the likelihood's terms of the block's n cases to `terms`. Targets and weights, null without weights, begin with
// those of the first of these cases.
template <class S, class T>
inline void add_terms(
    const PackedNetwork<S>& network, const PackedTargets<S>& given, const T* targets, const T* weights, long target_step,
    int n, double& terms) {
    const Job& job = given.job;
    const Network& net = network.net;
    const CasesOfPack<S, T> all = {
        reinterpret_cast<const S*>(network.layers[network.last].values), targets, weights,
        job.noise + long(given.chain) * net.n_targets, network.stride * network.W, target_step, net.n_targets, 0,
        net.alpha};
    PackDouble sum;
    switch (net.model) {
        case GAUSSIAN: sum = terms_of_cases<GAUSSIAN>(all, given.n_outputs, n); break;
        case STUDENT_T: sum = terms_of_cases<STUDENT_T>(all, given.n_outputs, n); break;
        case BINARY: sum = terms_of_cases<BINARY>(all, given.n_outputs, n); break;
        case COUNT: sum = terms_of_cases<COUNT>(all, given.n_outputs, n); break;
        case SURVIVAL: sum = terms_of_cases<SURVIVAL>(all, given.n_outputs, n); break;
        case HETEROSCEDASTIC: sum = terms_of_cases<HETEROSCEDASTIC>(all, given.n_outputs, n); break;
        case DISPERSED_COUNT: sum = terms_of_cases<DISPERSED_COUNT>(all, given.n_outputs, n); break;
        default: sum = terms_of_cases<CLASS>(all, given.n_outputs, n); break;
    }
    for (int k = 0; k < Lane<PackDouble>::width; ++k) terms += sum[k];
}

// The terms of real targets without weights, in the type of the outputs: quicker, and right to its rounding.
template <class S>
inline double gaussian_terms(
    const PackedNetwork<S>& network, const PackedTargets<S>& given, const typename Pack<S>::Type* targets, int n) {
    typedef typename Pack<S>::Type L;
    constexpr int W = Lane<L>::width;
    const L* outputs = network.layers[network.last].values;
    const long stride = network.stride;
    L sum = {};
    for (int o = 0; o < given.n_outputs; ++o, outputs += stride, targets += stride) {
        L squares = {};
        for (long p = 0; p < n / W; ++p) squares += (outputs[p] - targets[p]) * (outputs[p] - targets[p]);
        if (n % W) {
            const L last = outputs[n / W] - targets[n / W];
            squares += first_places(last * last, n % W);
        }
        sum += squares * given.taus[o];
    }
    return -0.5 * sum_of_places(sum);
}

// --- the outputs' derivatives ---

// One pack of cases, as output_slopes wants it.
template <class S>
struct TargetsOfPack {
    typedef typename Pack<S>::Type L;
    const L* targets;
    long stride;
    int n_targets;
    const S *scales, *taus, *log_taus;
    S noise_alpha;

    RAYFBNN_METHOD L target(int o) const { return targets[o * stride]; }
    RAYFBNN_METHOD L second(int o) const { return target(n_targets + o); }
    RAYFBNN_METHOD S scale(int o) const { return scales[o]; }
    RAYFBNN_METHOD S tau(int o) const { return taus[o]; }
    RAYFBNN_METHOD S log_tau(int o) const { return log_taus[o]; }
    RAYFBNN_METHOD S alpha() const { return noise_alpha; }
};

template <int MODEL, class S>
RAYFBNN_METHOD void slopes_of_packs(typename Pack<S>::Type* outputs, int n_outputs, TargetsOfPack<S> pack) {
    const long n_packs = pack.stride;
    for (long p = 0; p < n_packs; ++p, ++pack.targets)
        output_slopes<Lane<typename Pack<S>::Type>>(MODEL, outputs + p, n_packs, n_outputs, pack);
}

// Replaces the outputs by the derivatives of the potential. y and w are the block's targets and weights, w null without
// weights. Cases that only fill up the block's last pack, behind its first n_in_last places, get zeros.
template <class S>
inline void slopes_of_outputs(
    const PackedNetwork<S>& network, const PackedTargets<S>& given, const typename Pack<S>::Type* y,
    const typename Pack<S>::Type* w, int n_in_last) {
    typedef typename Pack<S>::Type L;
    constexpr int W = Lane<L>::width;
    const Network& net = network.net;
    const long stride = network.stride;
    const int n = given.n_outputs;
    L* v = network.layers[network.last].values;
    const TargetsOfPack<S> block = {y, stride, net.n_targets, given.scales, given.taus, given.log_taus, S(net.alpha)};
    switch (net.model) {
        case GAUSSIAN: slopes_of_packs<GAUSSIAN>(v, n, block); break;
        case STUDENT_T: slopes_of_packs<STUDENT_T>(v, n, block); break;
        case BINARY: slopes_of_packs<BINARY>(v, n, block); break;
        case COUNT: slopes_of_packs<COUNT>(v, n, block); break;
        case SURVIVAL: slopes_of_packs<SURVIVAL>(v, n, block); break;
        case HETEROSCEDASTIC: slopes_of_packs<HETEROSCEDASTIC>(v, n, block); break;
        case DISPERSED_COUNT: slopes_of_packs<DISPERSED_COUNT>(v, n, block); break;
        default: slopes_of_packs<CLASS>(v, n, block); break;
    }
    if (w)
        for (int o = 0; o < n; ++o)
            for (long p = 0; p < stride; ++p) v[o * stride + p] *= w[(o % net.n_targets) * stride + p];
    S* places = reinterpret_cast<S*>(v);
    for (int o = 0; o < n; ++o)
        for (int c = n_in_last; c < W; ++c) places[((o + 1) * stride - 1) * W + c] = 0;
}

}  // namespace RAYFBNN_NAMESPACE
#endif
