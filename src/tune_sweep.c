// See tune_sweep.h.
#include "tune_sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 64
#define LEAST_ROUNDS 3       // fewer say nothing
#define PREPARING_SHARE 0.5  // of the time, at most
#define MARGIN 0.02          // nearer to the best than that, nobody is given up
#define MARGIN_MADS 4.0
#define FAR 1.25  // slower than the best by that factor, nobody is kept

// Rounds of each stage; between two of them the slower half goes.
static const struct {
  int stages[5];
  double prune;  // by the model: kept up to that factor of the best prediction
  size_t most;   // and so many at most
} efforts[] = {
  [DW_QUICK] = {{3, 4, 8}, 1.4, 12},
  [DW_MEASURE] = {{5, 6, 10, 20}, 2.0, 32},
  [DW_EXHAUSTIVE] = {{11, 10, 20}, INFINITY, DW__CANDIDATES_MAX},
};

// ---- pruning --------------------------------------------------------------------------------------------------

void dw__sweep_prune(const dw__candidate *candidates, size_t count, int effort, bool *kept) {
  double best = INFINITY;
  for (size_t i = 0; i < count; i++)
    if (candidates[i].predicted_us > 0) best = fmin(best, candidates[i].predicted_us);
  for (size_t i = 0; i < count; i++) {
    const dw__candidate *c = &candidates[i];
    size_t before = 0;  // how many are predicted to be faster
    for (size_t j = 0; j < count; j++)
      before += candidates[j].predicted_us < c->predicted_us || (candidates[j].predicted_us == c->predicted_us && j < i);
    kept[i] = c->is_default || !(c->predicted_us > 0) ||
              (c->predicted_us <= efforts[effort].prune * best && before < efforts[effort].most);
  }
}

// ---- the sweep ------------------------------------------------------------------------------------------------

typedef struct runner {
  bool alive;
  double samples[DW__L2_STATES][ROUNDS_MAX];
} runner;

typedef struct sweep {
  const dw__timer *timer;
  const dw__sweep_policy *policy;
  const dw__candidate *candidates;
  size_t count, normal, prepared;
  dw__result *results;
  runner *runners;
  int rounds[DW__L2_STATES];  // complete ones
} sweep;

static bool is_late(const sweep *s, double share_left) {
  return s->timer->now(s->timer->user) >= s->policy->deadline - share_left;
}

static size_t count_alive(const sweep *s) {
  size_t alive = 0;
  for (size_t i = 0; i < s->count; i++) alive += s->runners[i].alive;
  return alive;
}

static dw_status tell(const sweep *s, size_t i, dw_error *error) {
  const dw__timer *t = s->timer;
  if (!t->progress || !t->progress(t->user, &s->candidates[i], s->prepared, count_alive(s), s->rounds[s->policy->decides]))
    return DW_OK;
  return dw__fail(error, DW_CANCELLED, "progress", "", "", "cancelled by the caller");
}

static void fall(sweep *s, size_t i, const dw__trial *trial) {
  s->runners[i].alive = false;
  s->results[i].trial = *trial;
  s->results[i].verdict = trial->verdict;
}

static dw_status prepare(sweep *s, size_t i, dw_error *error) {
  dw__trial trial = {.rel_err = -1};
  dw_status status = s->timer->prepare(s->timer->user, &s->candidates[i], &trial, error);
  if (status) return status;
  s->results[i].trial = trial;
  s->prepared++;
  if (trial.verdict == DW__SOUND) s->runners[i].alive = true;
  else s->results[i].verdict = trial.verdict;
  return tell(s, i, error);
}

// The default first, then by prediction.
static dw_status prepare_all(sweep *s, const bool *kept, dw_error *error) {
  const double reserve = (s->policy->deadline - s->timer->now(s->timer->user)) * (1 - PREPARING_SHARE);
  bool done[DW__CANDIDATES_MAX] = {false};
  dw_status status = prepare(s, s->normal, error);
  done[s->normal] = true;
  while (!status && !is_late(s, reserve)) {
    size_t next = s->count;
    for (size_t i = 0; i < s->count; i++)
      if (kept[i] && !done[i] && (next == s->count || s->candidates[i].predicted_us < s->candidates[next].predicted_us))
        next = i;
    if (next == s->count) break;
    done[next] = true;
    status = prepare(s, next, error);
  }
  return status;
}

// Everybody in play once, in an order that changes from round to round. False: the deadline came first, and the round does not count.
static dw_status play_round(sweep *s, dw__l2_state l2, bool *whole, dw_error *error) {
  const int round = s->rounds[l2];
  *whole = false;
  for (size_t k = 0; k < s->count; k++) {
    const size_t turn = round % 2 ? s->count - 1 - k : k, i = (turn + (size_t)round * 7) % s->count;
    if (!s->runners[i].alive) continue;
    if (is_late(s, 0)) return DW_OK;
    dw__trial trial = s->results[i].trial;
    dw_status status = s->timer->time(s->timer->user, &s->candidates[i], l2, &trial, error);
    if (status) return status;
    if (trial.verdict != DW__SOUND) fall(s, i, &trial);
    else s->runners[i].samples[l2][round] = trial.us;
  }
  s->rounds[l2]++;
  *whole = true;
  return tell(s, s->normal, error);
}

static void summarise(const sweep *s, size_t i, dw__l2_state l2) {
  double values[ROUNDS_MAX];
  dw__times *t = &s->results[i].times[l2];
  const double *own = s->runners[i].samples[l2], *normal = s->runners[s->normal].samples[l2];
  const size_t n = (size_t)s->rounds[l2];
  if (!n) return;
  memcpy(values, own, n * sizeof *values);
  *t = (dw__times){.n = (int)n, .us = dw__median(values, n)};  // sorted now
  t->p10 = values[(size_t)(0.1 * (double)(n - 1) + 0.5)];
  t->p90 = values[(size_t)(0.9 * (double)(n - 1) + 0.5)];
  t->mad = dw__mad(values, n, t->us);
  if (!s->runners[s->normal].alive) return;
  for (size_t r = 0; r < n; r++) values[r] = own[r] / normal[r];
  t->ratio = dw__median(values, n);
  t->ratio_mad = dw__mad(values, n, t->ratio);
}

static double score(const sweep *s, size_t i) {
  const dw__times *t = &s->results[i].times[s->policy->decides];
  return t->ratio > 0 ? t->ratio : t->us;
}

// After a first round that leaves no time for the least number of rounds, only those stay in play for whom there is time.
static void fit_in(sweep *s, double round_seconds) {
  const double left = s->policy->deadline - s->timer->now(s->timer->user), alive = (double)count_alive(s);
  double room = floor(left / (round_seconds / alive) / LEAST_ROUNDS);
  if (room >= alive) return;
  for (size_t i = 0; i < s->count; i++) summarise(s, i, s->policy->decides);
  for (; count_alive(s) > fmax(room, 2);) {
    size_t worst = s->count;
    for (size_t i = 0; i < s->count; i++)
      if (s->runners[i].alive && i != s->normal && (worst == s->count || score(s, i) > score(s, worst))) worst = i;
    s->results[worst].verdict = DW__SLOWER;
    s->runners[worst].alive = false;
  }
}

// The slower half goes, but nobody who may still be the best; the default stays.
static void halve(sweep *s) {
  double best = INFINITY, noise = 0;
  size_t alive = count_alive(s);
  for (size_t i = 0; i < s->count; i++) {
    if (!s->runners[i].alive) continue;
    summarise(s, i, s->policy->decides);
    const dw__times *t = &s->results[i].times[s->policy->decides];
    if (score(s, i) >= best) continue;
    best = score(s, i);
    noise = t->ratio > 0 ? t->ratio_mad : t->mad;
  }
  const double near = best + fmax(MARGIN * best, MARGIN_MADS * noise);
  for (size_t i = 0; i < s->count; i++) {
    if (!s->runners[i].alive || i == s->normal || score(s, i) <= near) continue;
    size_t faster = 0;
    for (size_t j = 0; j < s->count; j++) {
      const bool in = s->runners[j].alive || s->results[j].verdict == DW__SLOWER;
      faster += in && s->results[j].times[0].n + s->results[j].times[1].n > 0 && score(s, j) < score(s, i);
    }
    if (faster < (alive + 1) / 2 && score(s, i) <= FAR * best) continue;
    s->results[i].verdict = DW__SLOWER;
  }
  for (size_t i = 0; i < s->count; i++)
    if (s->results[i].verdict == DW__SLOWER) s->runners[i].alive = false;
}

static dw_status play(sweep *s, dw_error *error) {
  const int *stages = efforts[s->policy->effort].stages;
  const dw__l2_state decides = s->policy->decides, other = decides == DW__COLD ? DW__WARM : DW__COLD;
  bool whole = true;
  for (int stage = 0; stages[stage] && whole; stage++) {
    if (stage) halve(s);
    for (int r = 0; r < stages[stage] && whole; r++) {
      const double begun = s->timer->now(s->timer->user);
      dw_status status = play_round(s, decides, &whole, error);
      if (status) return status;
      if (s->rounds[decides] == 1 && whole) fit_in(s, s->timer->now(s->timer->user) - begun);
    }
  }
  // For the record alone.
  for (int r = 0; s->policy->both_states && r < stages[0] && whole; r++) {
    dw_status status = play_round(s, other, &whole, error);
    if (status) return status;
  }
  return DW_OK;
}

static void finish(const sweep *s) {
  for (size_t i = 0; i < s->count; i++) {
    dw__result *r = &s->results[i];
    if (!s->runners[i].alive) continue;
    for (int l2 = 0; l2 < DW__L2_STATES; l2++) summarise(s, i, (dw__l2_state)l2);
    if (r->times[s->policy->decides].n >= LEAST_ROUNDS) r->verdict = DW__SOUND;
  }
}

dw_status dw__sweep(const dw__timer *timer, const dw__sweep_policy *policy, const dw__candidate *candidates, size_t count,
                    dw__result *results, dw_error *error) {
  bool kept[DW__CANDIDATES_MAX];
  sweep s = {.timer = timer, .policy = policy, .candidates = candidates, .count = count, .results = results};
  while (s.normal < count && !candidates[s.normal].is_default) s.normal++;
  if (!count || count > DW__CANDIDATES_MAX || s.normal == count)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "candidates", (long long)count, "1 to 256, the default among them", "%s", "");
  if (policy->effort < DW_QUICK || policy->effort > DW_EXHAUSTIVE)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "effort", policy->effort, "0 to 2", "dw_effort");
  s.runners = dw__calloc(count, sizeof *s.runners);
  if (!s.runners) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (size_t i = 0; i < count; i++) results[i] = (dw__result){.verdict = DW__VERDICTS, .trial.rel_err = -1};
  dw__sweep_prune(candidates, count, policy->effort, kept);
  dw_status status = prepare_all(&s, kept, error);
  if (!status) status = play(&s, error);
  if (!status) finish(&s);
  dw__release(s.runners);
  return status;
}
