// What to measure of one problem, and in which order: candidates in turns, the slow ones given up half by half, until a deadline. It
// reaches the GPU only through a timer, which tests replace.
#ifndef DRAFTWOOD_TUNE_SWEEP_H
#define DRAFTWOOD_TUNE_SWEEP_H

#include "tune.h"

typedef struct dw__trial {
  int verdict;  // dw__verdict: DW__SOUND, or what went wrong
  double us;    // timing: of a call
  double rel_err;
  char build_key[65], compiler[32], why[192];
} dw__trial;

// Each of them returns an error only where the sweep cannot go on at all; what befalls a candidate is in the trial.
typedef struct dw__timer {
  void *user;
  // Built, loaded, run and compared with the oracle.
  dw_status (*prepare)(void *user, const dw__candidate *candidate, dw__trial *trial, dw_error *error);
  // One timing; of a prepared candidate only.
  dw_status (*time)(void *user, const dw__candidate *candidate, dw__l2_state l2, dw__trial *trial, dw_error *error);
  double (*now)(void *user);  // seconds
  // What there is to tell; not 0: stop, with DW_CANCELLED. NULL: nothing is told.
  int (*progress)(void *user, const dw__candidate *candidate, size_t prepared, size_t alive, int rounds);
} dw__timer;

typedef struct dw__sweep_policy {
  int effort;            // dw_effort
  dw__l2_state decides;  // by which times candidates are given up
  bool both_states;      // time the other state too
  double deadline;       // by the timer's clock
} dw__sweep_policy;

// Times of one state of the L2, over the rounds that all candidates in play went through.
typedef struct dw__times {
  int n;
  double us, p10, p90, mad, ratio, ratio_mad;  // as in dw__tune_record
} dw__times;
typedef struct dw__result {
  dw__trial trial;  // of the preparation, or of the timing that failed
  int verdict;
  dw__times times[DW__L2_STATES];
} dw__result;

// results: room for `count`, filled in the candidates' order. Candidates that pruning or the deadline left out
// have verdict DW__VERDICTS. The default
// is prepared and timed first, and to the end. Ends soon after the deadline: within one call of the timer.
dw_status dw__sweep(const dw__timer *timer, const dw__sweep_policy *policy, const dw__candidate *candidates, size_t count,
                    dw__result *results, dw_error *error);

// What pruning leaves of the candidates, for an effort: true where it is measured.
void dw__sweep_prune(const dw__candidate *candidates, size_t count, int effort, bool *kept);

#endif
