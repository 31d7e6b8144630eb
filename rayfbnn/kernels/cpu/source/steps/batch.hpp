// The cases of batches: the random order of each pass, and a batch's cases in packs.
#ifndef RAYFBNN_BATCH_HPP
#define RAYFBNN_BATCH_HPP

#include <string.h>

#include "memory.hpp"
#include "packs.hpp"
#include "shuffles.hpp"

namespace RAYFBNN_NAMESPACE {

// The current chain's batch, if chains have batches. Batches of a pass differ by one case at most.
template <class S>
struct Batch {
    typedef typename Pack<S>::Type L;
    static constexpr int W = Lane<L>::width;
    static constexpr int E = 16 / sizeof(S);  // columns that are laid out at a time
    // The shortest record that there is. Passes put such records themselves in order, and the numbers of cases with
    // longer ones.
    struct Short {
        S at[4];
    };

    const Job& job;
    const long n_inputs, n_rows, n_weights;
    Buffer<Short> short_records;
    Buffer<int> order;
    const S* records = nullptr;  // the current chain's
    int chain = 0;
    long pass = -1;              // the current one
    long first = 0;              // of the batch's cases, in the order of the pass
    int n_cases = 0;

    explicit Batch(const Job& job)
        : job(job),
          n_inputs(job.network->units[0]),
          n_rows(job.network->n_rows),
          n_weights(job.weights ? job.network->n_targets : 0) {
        if (!job.shuffles) return;
        if (job.record_size == 4) {
            short_records = Buffer<Short>(job.n_all + W);  // as the last pack is read whole
            memset(static_cast<void*>(short_records + job.n_all), 0, W * sizeof(Short));
        } else {
            order = Buffer<int>(job.n_all);
        }
    }

    explicit operator bool() const { return job.shuffles != nullptr; }

    void begin_chain(int number) {
        chain = number, pass = -1;
        records = static_cast<const S*>(job.records) + chain * job.records_step;
    }

    // Takes the batch of a step of the call, after a new permutation where a pass begins.
    void begin(long step) {
        const long number = job.first_batch + step, piece = number % job.n_batches, n = job.n_all;
        if (pass != number / job.n_batches) begin_pass(number / job.n_batches);
        first = n * piece / job.n_batches;
        n_cases = int(n * (piece + 1) / job.n_batches - first);
    }

    void begin_pass(long number) {
        pass = number;
        const Shuffle shuffle(*job.shuffles, chain, job.shuffles->iteration + unsigned(pass));
        const auto* given = reinterpret_cast<const Short*>(records);
        if (short_records)
            shuffle.write(job.n_all, [given](long k) { return given[k]; }, short_records.data());
        else
            shuffle.write(job.n_all, [](long k) { return int(k); }, order.data());
    }

    // Lays out the packs begin .. begin + n_packs - 1 of the batch: inputs to rows of x, targets to rows of y, and
    // weights to rows of w, if there are any. Places behind the last case have copies of it, or other cases.
    void lay_out(int begin, long n_packs, L* x, L* y, L* w) const {
        const long n_wide = short_records ? 0 : n_inputs / W * W;
        if (n_wide > 0) lay_out_wide(begin, n_packs, n_wide, x);
        const long n_columns = n_inputs + n_rows + n_weights;
        for (long column = n_wide; column < n_columns; column += E) {
            L* to[E];  // rows of packs; columns that only fill up 16 bytes have none
            for (int e = 0; e < E; ++e) {
                const long place = column + e, of_target = place - n_inputs, of_weight = of_target - n_rows;
                to[e] = place >= n_columns ? nullptr  // without weights, w is null and has no places
                        : of_target < 0    ? x + place * n_packs
                        : of_weight < 0    ? y + of_target * n_packs
                                           : w + of_weight * n_packs;
            }
            if (short_records)
                lay_out_short(begin, n_packs, column, to);
            else
                lay_out_columns(begin, n_packs, column, to);
        }
    }

    void lay_out_short(int begin, long n_packs, long column, L* const* to) const {
        const Short* from = short_records + (first + long(begin) * W);
        for (long p = 0; p < n_packs; ++p, from += W) {
            const S* of[W];
            for (int k = 0; k < W; ++k) of[k] = from[k].at + column;
            put_columns(of, p, to);
        }
    }

    void lay_out_columns(int begin, long n_packs, long column, L* const* to) const {
        for (long p = 0; p < n_packs; ++p) {
            const S* of[W];
            find_cases(begin + p, column, of);
            put_columns(of, p, to);
        }
    }

    // Writes E columns of a pack of cases, which begin at `of`.
    static RAYFBNN_METHOD void put_columns(const S* const* of, long p, L* const* to) {
        L rows[E];
        for (int e = 0; e < E; ++e) {
            const S* pieces[W / E];
            for (int k = 0; k < W / E; ++k) pieces[k] = of[E * k + e];
            rows[e] = joined<L>(pieces);
        }
        turn<E>(rows);
        for (int e = 0; e < E; ++e)
            if (to[e]) to[e][p] = rows[e];
    }

    // Lays out the first inputs, whole packs of them, a pack of cases at a time, while those of the next pack are asked
    // for. They are brought into the second-level cache, as the first is too small for both packs.
    void lay_out_wide(int begin, long n_packs, long n_wide, L* place) const {
        const S *of[W], *of_next[W];
        find_cases(begin, 0, of);
        for (long p = 0; p < n_packs; ++p, ++place) {
            find_cases(begin + p + 1, 0, of_next);
            for (long i = 0; i < n_wide; i += W) {
                L rows[W];
                for (int k = 0; k < W; ++k) {
                    memcpy(&rows[k], of[k] + i, sizeof(L));
                    __builtin_prefetch(of_next[k] + i, 0, 2);
                }
                turn<W>(rows);
                for (int k = 0; k < W; ++k) place[(i + k) * n_packs] = rows[k];
            }
            memcpy(of, of_next, sizeof of);
        }
    }

    // Where the records of a pack of cases have a column.
    void find_cases(long pack, long column, const S** of) const {
        const int *numbers = order + (first + pack * W), n_left = n_cases - int(pack) * W;
        for (int k = 0; k < W; ++k) {
            const long row = numbers[k < n_left ? k : n_left - 1];
            of[k] = records + row * job.record_size + column;
        }
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
