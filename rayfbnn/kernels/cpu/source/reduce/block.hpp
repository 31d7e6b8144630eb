// Sums over draws, fused with the networks' forward pass: rayfbnn/reduce has what is done with them.
//
// A block of cases is laid out once, and every draw's network is evaluated at it. The sums of the block stay in cache.
#ifndef RAYFBNN_REDUCE_BLOCK_HPP
#define RAYFBNN_REDUCE_BLOCK_HPP

#include <string.h>

#include "packed_forward.hpp"
#include "shared/predictive.hpp"

namespace RAYFBNN_NAMESPACE {

using rayfbnn::Reduction;

// A pack of S as packs of doubles.
template <class S>
struct Doubles {
    static constexpr int N = sizeof(double) / sizeof(S);  // packs of doubles in a pack
    PackDouble part[N];

    RAYFBNN_METHOD explicit Doubles(const typename Pack<S>::Type& x) {
        if constexpr (N == 1)
            part[0] = x;
        else
            part[0] = doubles_of_half<0>(x), part[1] = doubles_of_half<1>(x);
    }
};

// Numbers as packs.
RAYFBNN_INLINE PackDouble* pack_at(double* numbers, long place) {
    return reinterpret_cast<PackDouble*>(numbers + place);
}
static inline void clear(double* own, long size) {
    for (long k = 0; k < size; ++k) own[k] = 0;
}

// The networks of a draw at a block of cases.
template <class S>
struct Block {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;

    const Job& job;
    const Network& net;
    const Reduction& wanted;
    PackedNetwork<S> network;
    const int n_outputs;
    const long n_cases;
    // Packs of the block, places for cases in them, its first case, and its cases.
    long n_packs = 0, n_places = 0, first = 0, n = 0;
    int draw = 0;

    explicit Block(const Job& job)
        : job(job),
          net(*job.network),
          wanted(*job.reduction),
          network(job),
          n_outputs(net.units[net.n_layers - 1]),
          n_cases(job.n_cases / wanted.n_cells) {}

    long places() const { return n_places; }
    long most_places() const { return long(job.largest_block) * W / wanted.n_cells; }
    long n_guesses() const { return long(wanted.n_guesses) * net.n_targets; }
    const L* outputs() const { return network.layers[network.last].values; }

    void begin(int number) {
        const Partition& partition = job.partitions[0];
        const int begin = partition.block_starts[number];
        n_packs = partition.block_starts[number + 1] - begin, n_places = n_packs * W / wanted.n_cells;
        first = long(begin) * W / wanted.n_cells;
        const long left = n_cases - first;
        n = left < n_places ? left : n_places;
        network.stride = n_packs;
        network.columns.cut(n_packs, network.has_large ? MOST_LARGE : MOST_PACKS);
        inputs = static_cast<const L*>(partition.inputs) + long(net.units[0]) * begin;
    }

    void evaluate(int number) {
        draw = number;
        network.q = static_cast<const S*>(job.position) + long(draw) * net.n_parameters;
        set_inputs();
        pack_weights(network);
        forward(network);
    }

    // The borrowed inputs are not to be freed.
    void end() {
        if (!network.layers[0].own_sources) network.layers[0].sources = nullptr;
    }

    // The output at a cell of the cases from number c of the block on.
    RAYFBNN_METHOD PackDouble log_hazard(int cell, long c) const {
        constexpr long group = Reduction::GROUP;
        const long place = wanted.n_cells == 1 ? c : (c / group * wanted.n_cells + cell) * group + c % group;
        return doubles_of(reinterpret_cast<const S*>(outputs()) + place);
    }

    // Rows of the block between the caller's arrays (n_rows, n_cases) and the block's own (n_rows, places).
    template <class T>
    void take(T* own, const T* given, long n_rows) const {
        for (long k = 0; k < n_rows; ++k)
            for (long c = 0; c < places(); ++c)
                own[k * places() + c] = given[k * n_cases + first + (c < n ? c : n - 1)];
    }
    void add_to(double* given, const double* own, long n_rows) const {
        for (long k = 0; k < n_rows; ++k)
            for (long c = 0; c < n; ++c) given[k * n_cases + first + c] += own[k * places() + c];
    }

   private:
    const L* inputs = nullptr;

    void set_inputs() {
        PackedLayer<S>& layer = network.layers[0];
        if (net.offsets[0] < 0) {
            layer.sources = const_cast<L*>(inputs);  // which nothing writes to
            return;
        }
        for (int i = 0; i < net.units[0]; ++i)
            for (long p = 0; p < n_packs; ++p)
                layer.sources[i * n_packs + p] = inputs[i * n_packs + p] + network.q[net.offsets[0] + i];
    }
};

// What is added up over the draws at a block.
template <class S>
class Sums {
   public:
    explicit Sums(const Job& job) : here(job) {}
    virtual ~Sums() {}

    void run() {
        for (int b = 0; b < here.job.partitions[0].n_blocks; ++b) {
            here.begin(b);
            begin();
            for (int draw = 0; draw < here.job.n_chains; ++draw) {
                here.evaluate(draw);
                add();
            }
            end();
        }
        here.end();
    }

   protected:
    Block<S> here;

    virtual void begin() {}
    virtual void add() = 0;
    virtual void end() {}
};

// The outputs themselves.
template <class S>
class Outputs : public Sums<S> {
   public:
    using Sums<S>::Sums;

   private:
    using Sums<S>::here;

    void add() override {
        const long n_cells = here.n * here.wanted.n_cells;
        S* to = static_cast<S*>(here.wanted.outputs) + long(here.draw) * here.n_outputs * here.job.n_cases;
        to += here.first * here.wanted.n_cells;
        for (int o = 0; o < here.n_outputs; ++o)
            memcpy(to + long(o) * here.job.n_cases, here.outputs() + o * here.n_packs, n_cells * sizeof(S));
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
