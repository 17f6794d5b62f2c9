// dw_tune: problems one after the other, each swept over a worker process that has the GPU. Everything that comes back is in the journal
// before it is used, so that a sweep that was killed goes on where it was; records and the plan follow from it.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "flow.h"
#include "lookup.h"
#include "model.h"
#include "tune_plan.h"
#include "tune_sweep.h"

#define ANSWER_SECONDS 30.0  // a timing, or a check against the oracle
#define BUILD_SECONDS 120.0  // a compile, or the making of a problem
#define GRACE_SECONDS 2.0    // after the deadline, for an answer that is under way

typedef struct worker {
  pid_t pid;  // 0: none
  int in, out;
  char *text;  // read and not yet taken
  size_t size, capacity;
} worker;

typedef struct run {
  dw_ctx *ctx;
  const dw_tune_options *options;
  const char *command;
  char **environment;
  double begun, end, answer_seconds;

  worker worker;
  dw__board board;
  char driver[64], conditions[256];
  bool greeted;

  char *folder;  // of this GPU
  int journal;
  dw__lookup known;  // what the journal held: event's name -> line
  char **lines;
  size_t line_count, line_capacity;

  // The problem in hand.
  const dw_request *asked;
  dw_bounds bounds;
  char name[17];
  dw__candidate candidates[DW__CANDIDATES_MAX];
  size_t count, kept;
  bool opened;                     // in this worker
  bool ready[DW__CANDIDATES_MAX];  // prepared in this worker
  int timings[DW__CANDIDATES_MAX][DW__L2_STATES];
  size_t problem, problems;
} run;

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory"); }

static dw_status fail_io(const char *path, int fault, dw_error *error) {
  return dw__fail(error, DW_IO, "folder", path, "a folder that can be written", "%s", strerror(fault));
}

// ---- the worker process ---------------------------------------------------------------------------------------

static void stop_worker(run *r, bool at_once) {
  worker *w = &r->worker;
  if (!w->pid) return;
  close(w->in);  // its sign to end
  if (at_once) kill(w->pid, SIGKILL);
  for (int i = 0; waitpid(w->pid, NULL, i < 200 ? WNOHANG : 0) == 0; i++) {
    if (i == 199) kill(w->pid, SIGKILL);
    poll(NULL, 0, 10);
  }
  close(w->out);
  dw__release(w->text);
  *w = (worker){0};
  r->opened = false;
  memset(r->ready, 0, sizeof r->ready);
}

static dw_status start_worker(run *r, dw_error *error) {
  int in[2], out[2];
  char gpu[16];
  snprintf(gpu, sizeof gpu, "%d", r->options->gpu);
  char *arguments[] = {(char *)r->command, "tune", "--worker", "--gpu", gpu, NULL};
  if (pipe2(in, O_CLOEXEC)) return dw__fail(error, DW_IO, "pipe", strerror(errno), "", "%s", "");
  if (pipe2(out, O_CLOEXEC)) {
    const int fault = errno;
    close(in[0]), close(in[1]);
    return dw__fail(error, DW_IO, "pipe", strerror(fault), "", "%s", "");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const int fault = posix_spawnp(&r->worker.pid, r->command, &actions, NULL, arguments, r->environment);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]), close(out[1]);
  r->worker.in = in[1];
  r->worker.out = out[0];
  if (!fault) return DW_OK;
  close(in[1]), close(out[0]);
  r->worker = (worker){0};
  return dw__fail(error, DW_NOT_FOUND, "command", r->command, "the program draftwood", "%s", strerror(fault));
}

typedef enum answer { ANSWERED, ENDED, SILENT } answer;

// The next line that the worker says, at most until `until`.
static answer hear(worker *w, double until, char **line) {
  for (;;) {
    char *feed = w->size ? memchr(w->text, '\n', w->size) : NULL;
    if (feed) {
      const size_t size = (size_t)(feed - w->text) + 1;
      *feed = 0;
      *line = dw__strdup(w->text);
      memmove(w->text, feed + 1, w->size - size);
      w->size -= size;
      return *line ? ANSWERED : ENDED;
    }
    if (w->size + 4096 > w->capacity) {
      char *more = w->capacity < (1 << 20) ? dw__realloc(w->text, w->capacity + 65536) : NULL;
      if (!more) return ENDED;
      w->text = more;
      w->capacity += 65536;
    }
    const double left = until - dw__seconds();
    struct pollfd fd = {.fd = w->out, .events = POLLIN};
    const int found = poll(&fd, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
    if (found == 0) return SILENT;
    if (found < 0 && errno == EINTR) continue;
    const ssize_t n = read(w->out, w->text + w->size, w->capacity - w->size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ENDED;
    w->size += (size_t)n;
  }
}

// SIGPIPE is the host's; a worker that is gone must not raise it.
static bool say(worker *w, const json_t *request) {
  char *text = json_dumps(request, JSON_COMPACT);
  sigset_t pipe_signal, before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const bool said = text && !dw__fd_write(w->in, text, strlen(text)) && !dw__fd_write(w->in, "\n", 1);
  if (!said && !sigismember(&before, SIGPIPE)) sigtimedwait(&pipe_signal, NULL, &(struct timespec){0});
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  free(text);
  return said;
}

static void tell_end(run *r, char why[192]) {
  int status = 0;
  worker *w = &r->worker;
  for (int i = 0; i < 100 && waitpid(w->pid, &status, WNOHANG) == 0; i++) poll(NULL, 0, 10);
  if (WIFSIGNALED(status))
    snprintf(why, 192, "its process ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else snprintf(why, 192, "its process ended with exit status %d", WEXITSTATUS(status));
  close(w->in);
  close(w->out);
  dw__release(w->text);
  *w = (worker){0};
  r->opened = false;
  memset(r->ready, 0, sizeof r->ready);
}

// One question and its answer. *reply is NULL where there is none: then trial->verdict is DW__CRASHED, DW__HUNG, or DW__VERDICTS where
// the deadline cut it short, and the worker is gone.
static void ask(run *r, json_t *request, double seconds, json_t **reply, dw__trial *trial) {
  char *line = NULL;
  const double now = dw__seconds(), until = now + seconds, last = r->end + GRACE_SECONDS;
  answer got = say(&r->worker, request) ? hear(&r->worker, until < last ? until : last, &line) : ENDED;
  json_decref(request);
  *reply = got == ANSWERED ? json_loads(line, JSON_REJECT_DUPLICATES, NULL) : NULL;
  dw__release(line);
  if (*reply) return;
  if (got == SILENT) {
    trial->verdict = until < last ? DW__HUNG : DW__VERDICTS;
    snprintf(trial->why, sizeof trial->why, "no answer within %.0f s", seconds);
    stop_worker(r, true);
  } else if (got == ENDED) {
    trial->verdict = DW__CRASHED;
    tell_end(r, trial->why);
  } else {
    trial->verdict = DW__CRASHED;
    snprintf(trial->why, sizeof trial->why, "its process said what is not JSON");
    stop_worker(r, true);
  }
}

static void copy_text(const json_t *reply, const char *name, char *to, size_t size) {
  const char *text = json_string_value(json_object_get(reply, name));
  snprintf(to, size, "%s", text ? text : "");
}

// The board it found, or its error.
static dw_status read_greeting(run *r, const json_t *reply, dw_error *error) {
  const json_t *board = json_object_get(reply, "board");
  json_int_t l2 = 0;
  const char *name = "";
  if (json_object_get(reply, "error")) {
    char text[512];
    copy_text(reply, "error", text, sizeof text);
    return dw__fail(error, (dw_status)json_integer_value(json_object_get(reply, "status")), "", "", "", "%s", text);
  }
  if (json_unpack((json_t *)board, "{s:s, s:i, s:i, s:I, s:i, s:i, s:i, s:i, s:i}", "name", &name, "cc", &r->board.cc, "sms",
                  &r->board.sm_count, "l2_bytes", &l2, "sm_mhz", &r->board.sm_mhz, "memory_mhz", &r->board.memory_mhz,
                  "power_watts", &r->board.power_watts, "mig", &r->board.mig, "ecc", &r->board.ecc))
    return dw__fail(error, DW_INTERNAL, "worker", "an answer without a board", "", "another version of draftwood, perhaps");
  snprintf(r->board.name, sizeof r->board.name, "%s", name);
  r->board.l2_bytes = l2;
  copy_text(reply, "driver", r->driver, sizeof r->driver);
  copy_text(reply, "conditions", r->conditions, sizeof r->conditions);
  r->greeted = true;
  return DW_OK;
}

static dw_status greet(run *r, dw_error *error) {
  dw__trial trial = {0};
  json_t *reply;
  dw_status status = start_worker(r, error);
  if (status) return status;
  ask(r, json_pack("{s:s}", "do", "hello"), BUILD_SECONDS, &reply, &trial);
  if (!reply) return dw__fail(error, DW_DRIVER, "worker", trial.why, "", "the process that was to have the GPU");
  status = read_greeting(r, reply, error);
  json_decref(reply);
  return status;
}

// ---- the journal ----------------------------------------------------------------------------------------------

static char *path_in(const char *folder, const char *name) {
  dw__buf path = {0};
  dw__buf_printf(&path, "%s/%s", folder, name);
  if (path.failed) dw__buf_free(&path);
  return path.data;
}

static dw_status open_append(const char *folder, const char *name, bool anew, int *fd, dw_error *error) {
  char *path = path_in(folder, name), last;
  if (!path) return no_memory(error);
  *fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (anew ? O_TRUNC : 0), 0600);
  dw_status status = *fd < 0 ? fail_io(path, errno, error) : DW_OK;
  dw__release(path);
  // A line cut off by a kill ends here.
  if (!status && lseek(*fd, -1, SEEK_END) >= 0 && read(*fd, &last, 1) == 1 && last != '\n') dw__fd_write(*fd, "\n", 1);
  return status;
}

static dw_status make_folder(char *path, dw_error *error) {
  for (char *slash = path + 1; *slash; slash++) {
    if (*slash != '/') continue;
    *slash = 0;
    const int failed = mkdir(path, 0700) && errno != EEXIST ? errno : 0;
    *slash = '/';
    if (failed) return fail_io(path, failed, error);
  }
  return mkdir(path, 0700) && errno != EEXIST ? fail_io(path, errno, error) : DW_OK;
}

dw_status dw__tune_append(const char *folder, const char *name, const dw__buf *text, dw_error *error) {
  int fd, fault = 0;
  char *path = dw__strdup(folder);
  dw_status status = path ? make_folder(path, error) : no_memory(error);
  dw__release(path);
  if (!status) status = open_append(folder, name, false, &fd, error);
  if (status) return status;
  if (text->size) fault = dw__fd_write(fd, text->data, text->size);
  if (!fault && fsync(fd)) fault = errno;
  close(fd);
  return fault ? fail_io(folder, fault, error) : DW_OK;
}

static bool keep_line(run *r, char *line) {
  if (r->line_count == r->line_capacity) {
    const size_t capacity = r->line_capacity ? 2 * r->line_capacity : 1024;
    char **list = dw__realloc(r->lines, capacity * sizeof *list);
    if (!list) return false;
    r->lines = list;
    r->line_capacity = capacity;
  }
  r->lines[r->line_count++] = line;
  return true;
}

// "problem|variant|what|k": what an event is about stands at its line's beginning, parted by a tab from what came of it.
static void event_name(const run *r, const dw__candidate *c, const char *what, int k, char text[DW_TEXT_MAX + 64]) {
  char variant[DW_TEXT_MAX];
  dw_variant_print(&c->variant, variant, sizeof variant);
  snprintf(text, DW_TEXT_MAX + 64, "%s|%s|%s|%d", r->name, variant, what, k);
}

static dw_status take_event(void *user, const char *line, size_t size, dw_error *error) {
  run *r = user;
  const char *tab = memchr(line, '\t', size);
  if (!tab) return DW_OK;  // the rest of a line that was cut off
  char *copy = dw__alloc(size + 1);
  if (!copy) return no_memory(error);
  memcpy(copy, line, size);
  copy[size] = 0;
  if (!keep_line(r, copy)) {
    dw__release(copy);
    return no_memory(error);
  }
  return dw__lookup_put(&r->known, copy, (size_t)(tab - line), copy + (tab - line) + 1) ? DW_OK : no_memory(error);
}

static dw_status open_journal(run *r, dw_error *error) {
  char name[64], *data = NULL;
  size_t size = 0;
  snprintf(name, sizeof name, "journal-%d-of-%d.txt", r->options->shard, r->options->shards ? r->options->shards : 1);
  char *path = path_in(r->folder, name);
  if (!path) return no_memory(error);
  dw_status status = r->options->resume ? dw__file_read(path, &data, &size, NULL) : DW_NOT_FOUND;
  dw__release(path);
  if (!status) status = dw__lines_read(data, size, take_event, r, error);
  else status = DW_OK;
  dw__release(data);
  return status ? status : open_append(r->folder, name, !r->options->resume, &r->journal, error);
}

static json_t *trial_json(const dw__trial *t) {
  return json_pack("{s:i, s:f, s:f, s:s, s:s, s:s}", "verdict", t->verdict, "us", t->us, "rel_err", t->rel_err, "build_key",
                   t->build_key, "compiler", t->compiler, "why", t->why);
}

static bool trial_read(const char *text, dw__trial *t) {
  const char *key = "", *compiler = "", *why = "";
  json_t *row = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
  const bool sound = row && !json_unpack(row, "{s:i, s:F, s:F, s:s, s:s, s:s !}", "verdict", &t->verdict, "us", &t->us,
                                         "rel_err", &t->rel_err, "build_key", &key, "compiler", &compiler, "why", &why);
  if (sound) {
    snprintf(t->build_key, sizeof t->build_key, "%s", key);
    snprintf(t->compiler, sizeof t->compiler, "%s", compiler);
    snprintf(t->why, sizeof t->why, "%s", why);
  }
  json_decref(row);
  return sound && t->verdict >= 0 && t->verdict < DW__VERDICTS;
}

static bool remembered(const run *r, const char *name, dw__trial *trial) {
  const char *text = dw__lookup_find(&r->known, name, strlen(name));
  dw__trial read = *trial;
  if (!text || !trial_read(text, &read)) return false;
  *trial = read;
  return true;
}

static dw_status note(const run *r, const char *name, const dw__trial *trial, dw_error *error) {
  if (trial->verdict == DW__VERDICTS) return DW_OK;
  json_t *row = trial_json(trial);
  char *dump = row ? json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
  dw__buf line = {0};
  json_decref(row);
  dw__buf_printf(&line, "%s\t%s\n", name, dump ? dump : "");
  free(dump);
  if (line.failed) return no_memory(error);
  const int fault = dw__fd_write(r->journal, line.data, line.size);  // one write: whole, or cut off at the end
  dw__buf_free(&line);
  return fault ? fail_io(r->folder, fault, error) : DW_OK;
}

// ---- the timer of a sweep -------------------------------------------------------------------------------------

static size_t index_of(const run *r, const dw__candidate *c) { return (size_t)(c - r->candidates); }

static json_t *problem_request(const run *r) {
  char shape[DW_TEXT_MAX];
  dw_shape_print(r->asked->shape, shape, sizeof shape);
  return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i}", "do", "problem", "shape", shape, "batch", r->bounds.batch, "kv_len",
                   r->bounds.kv_len, "call", (int)r->bounds.call, "features", r->bounds.features, "split_tokens",
                   r->bounds.split_tokens);
}

static json_t *candidate_request(const char *what, const dw__candidate *c) {
  char variant[DW_TEXT_MAX];
  dw_variant_print(&c->variant, variant, sizeof variant);
  return json_pack("{s:s, s:s}", "do", what, "variant", variant);
}

// A worker with this problem in it. The sweep cannot go on without.
static dw_status open_problem(run *r, dw_error *error) {
  dw__trial trial = {0};
  json_t *reply;
  dw_status status = r->worker.pid ? DW_OK : greet(r, error);
  if (status || r->opened) return status;
  ask(r, problem_request(r), BUILD_SECONDS, &reply, &trial);
  if (!reply && trial.verdict == DW__VERDICTS) return DW_OK;  // late: nothing is opened
  if (!reply) return dw__fail(error, DW_DRIVER, "worker", trial.why, "", "while the problem was made");
  status = read_greeting(r, reply, error);
  json_decref(reply);
  r->opened = !status;
  return status;
}

static void take_reply(const json_t *reply, dw__trial *trial) {
  char verdict[32];
  copy_text(reply, "verdict", verdict, sizeof verdict);
  trial->verdict = DW__UNBUILT;
  for (const dw__name *v = dw__verdict_names; v->text; v++)
    if (!strcmp(v->text, verdict)) trial->verdict = v->value;
  const json_t *us = json_object_get(reply, "us"), *err = json_object_get(reply, "rel_err");
  if (us) trial->us = json_number_value(us);
  if (err) trial->rel_err = json_number_value(err);
  if (json_object_get(reply, "build_key")) copy_text(reply, "build_key", trial->build_key, sizeof trial->build_key);
  if (json_object_get(reply, "compiler")) copy_text(reply, "compiler", trial->compiler, sizeof trial->compiler);
  copy_text(reply, "why", trial->why, sizeof trial->why);
}

// Built first, and answered for, so that of one that takes its process along it is known what it was.
static dw_status prepare_now(run *r, const dw__candidate *c, dw__trial *trial, dw_error *error) {
  static const char *const steps[] = {"build", "prepare"};
  dw_status status = open_problem(r, error);
  if (status) return status;
  trial->verdict = r->opened ? DW__SOUND : DW__VERDICTS;
  for (size_t i = 0; i < DW__COUNT(steps) && trial->verdict == DW__SOUND; i++) {
    json_t *reply;
    ask(r, candidate_request(steps[i], c), i ? r->answer_seconds : BUILD_SECONDS, &reply, trial);
    if (reply) take_reply(reply, trial);
    json_decref(reply);
  }
  r->ready[index_of(r, c)] = trial->verdict == DW__SOUND;
  return DW_OK;
}

static dw_status prepare(void *user, const dw__candidate *c, dw__trial *trial, dw_error *error) {
  run *r = user;
  char name[DW_TEXT_MAX + 64];
  event_name(r, c, "check", 0, name);
  if (remembered(r, name, trial)) return DW_OK;
  dw_status status = prepare_now(r, c, trial, error);
  return status ? status : note(r, name, trial, error);
}

static dw_status time_one(void *user, const dw__candidate *c, dw__l2_state l2, dw__trial *trial, dw_error *error) {
  run *r = user;
  const size_t i = index_of(r, c);
  char name[DW_TEXT_MAX + 64];
  event_name(r, c, dw__l2_names[l2].text, r->timings[i][l2]++, name);
  if (remembered(r, name, trial)) return DW_OK;
  dw_status status = DW_OK;
  // A worker that is new since has to make it ready again.
  if (!r->ready[i]) status = prepare_now(r, c, trial, error);
  if (!status && r->ready[i]) {
    json_t *request = candidate_request("time", c), *reply;
    json_object_set_new(request, "l2", json_string(dw__l2_names[l2].text));
    ask(r, request, r->answer_seconds, &reply, trial);
    if (reply) take_reply(reply, trial);
    json_decref(reply);
  }
  return status ? status : note(r, name, trial, error);
}

static double now(void *user) {
  (void)user;
  return dw__seconds();
}

static int tell(void *user, const dw__candidate *c, size_t prepared, size_t alive, int rounds) {
  const run *r = user;
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  if (!r->options->progress) return 0;
  dw_shape_print(r->asked->shape, shape, sizeof shape);
  dw_variant_print(&c->variant, variant, sizeof variant);
  const dw_tune_progress progress = {.size = sizeof progress,
                                     .problems = r->problems,
                                     .problem = r->problem,
                                     .candidates = r->kept,
                                     .prepared = prepared,
                                     .in_play = alive,
                                     .rounds = rounds,
                                     .seconds = dw__seconds() - r->begun,
                                     .budget_seconds = r->end - r->begun,
                                     .shape = shape,
                                     .variant = variant};
  return r->options->progress(r->options->progress_user, &progress);
}

// ---- one problem ----------------------------------------------------------------------------------------------

static const char *const effort_names[] = {"quick", "measure", "exhaustive"};

static void fill_record(const run *r, size_t i, const dw__result *result, int l2, dw__tune_record *record) {
  const dw__times *t = &result->times[l2];
  const time_t seconds = time(NULL);
  struct tm utc;
  memset(record, 0, sizeof *record);
  strftime(record->date, sizeof record->date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
  snprintf(record->version, sizeof record->version, "%s", dw_version());
  record->key = dw__tune_key_of(r->asked->shape, &r->bounds, r->board.l2_bytes);
  record->batch = r->bounds.batch;
  record->kv_len = r->bounds.kv_len;
  record->variant = r->candidates[i].variant;
  record->id = r->candidates[i].id;
  record->is_default = r->candidates[i].is_default;
  memcpy(record->build_key, result->trial.build_key, sizeof record->build_key);
  memcpy(record->compiler, result->trial.compiler, sizeof record->compiler);
  record->board = r->board;
  memcpy(record->driver, r->driver, sizeof record->driver);
  snprintf(record->policy, sizeof record->policy, "%s/%s", effort_names[r->options->effort],
           dw__l2_names[r->options->warm ? DW__WARM : DW__COLD].text);
  record->l2 = l2;
  record->n = t->n;
  record->us = t->us;
  record->us_p10 = t->p10;
  record->us_p90 = t->p90;
  record->us_mad = t->mad;
  record->ratio = t->ratio;
  record->ratio_mad = t->ratio_mad;
  record->verdict = result->verdict;
  record->rel_err = result->trial.rel_err;
  dw__numerics_class(&record->variant, r->bounds.split_tokens, record->numerics);
  memcpy(record->conditions, r->conditions, sizeof record->conditions);
  memcpy(record->why, result->trial.why, sizeof record->why);
}

static dw_status write_records(const run *r, const dw__result *results, dw_error *error) {
  const int decides = r->options->warm ? DW__WARM : DW__COLD;
  dw__buf text = {0};
  dw__tune_record record;
  for (size_t i = 0; i < r->count; i++) {
    if (results[i].verdict == DW__VERDICTS) continue;
    for (int l2 = 0; l2 < DW__L2_STATES; l2++) {
      if (l2 != decides && !results[i].times[l2].n) continue;
      fill_record(r, i, &results[i], l2, &record);
      dw__tune_record_print(&record, &text);
    }
  }
  dw_status status = text.failed ? no_memory(error) : dw__tune_append(r->folder, "records.jsonl", &text, error);
  dw__buf_free(&text);
  return status;
}

// Names what was measured: of the same problem by the same code on the same driver.
static void name_problem(run *r) {
  char shape[DW_TEXT_MAX], all[DW_TEXT_MAX + 256], hex[65];
  dw_shape_print(r->asked->shape, shape, sizeof shape);
  snprintf(all, sizeof all, "%s|%d|%d|%d|%d|%d|%d|%s|%s", shape, r->bounds.batch, r->bounds.kv_len, r->bounds.total_q,
           (int)r->bounds.call, r->bounds.features, r->bounds.split_tokens, r->driver, dw_version());
  const dw__digest digest = dw__sha256(all, strlen(all));
  dw__hex(&digest, hex);
  memcpy(r->name, hex, 16);
  r->name[16] = 0;
}

static dw_status list_candidates(run *r, dw_error *error) {
  bool kept[DW__CANDIDATES_MAX];
  dw_status status = dw__candidates(r->asked->shape, &r->bounds, r->options->any_numerics, r->candidates, &r->count, error);
  if (status) return status;
  for (size_t i = 0; i < r->count; i++)
    r->candidates[i].predicted_us = dw__predict_on(r->asked->shape, &r->candidates[i].variant, &r->bounds, &r->board);
  dw__sweep_prune(r->candidates, r->count, r->options->effort, kept);
  r->kept = 0;
  for (size_t i = 0; i < r->count; i++) r->kept += kept[i];
  return DW_OK;
}

static dw_status read_problem(run *r, const dw_request *asked, dw_error *error) {
  memset(&r->bounds, 0, sizeof r->bounds);
  if (!asked->shape || !asked->bounds) return dw__no_argument(error, asked->shape ? "bounds" : "shape");
  if (asked->variant)
    return dw__fail(error, DW_BAD_ARGUMENT, "variant", "one that is given", "NULL", "it is what is looked for");
  dw_status status = dw_shape_check(asked->shape, error);
  if (!status) status = dw__read_sized("bounds", asked->bounds, &r->bounds, sizeof r->bounds, error);
  if (status) return status;
  r->asked = asked;
  r->bounds.size = sizeof r->bounds;
  if (!r->bounds.sm_count) r->bounds.sm_count = r->board.sm_count;
  if (!r->bounds.total_q) r->bounds.total_q = r->bounds.batch * asked->shape->width;
  return DW_OK;
}

// The board right after it was busy: what holds its clocks down shows now. What was seen before stays where nothing is.
static void look_again(run *r) {
  char before[sizeof r->conditions];
  dw__trial trial = {0};
  json_t *reply;
  if (!r->worker.pid) return;
  memcpy(before, r->conditions, sizeof before);
  ask(r, json_pack("{s:s}", "do", "hello"), r->answer_seconds, &reply, &trial);
  if (reply) read_greeting(r, reply, NULL);
  json_decref(reply);
  if (!*r->conditions) memcpy(r->conditions, before, sizeof before);
}

static dw_status tune_one(run *r, const dw_request *asked, double deadline, dw_error *error) {
  const dw__timer timer = {r, prepare, time_one, now, tell};
  const dw__sweep_policy policy = {.effort = r->options->effort,
                                   .decides = r->options->warm ? DW__WARM : DW__COLD,
                                   .both_states = r->options->effort != DW_QUICK,
                                   .deadline = deadline};
  dw_status status = read_problem(r, asked, error);
  if (!status) status = list_candidates(r, error);
  if (status) return status;
  name_problem(r);
  r->opened = false;
  memset(r->ready, 0, sizeof r->ready);
  memset(r->timings, 0, sizeof r->timings);
  dw__result *results = dw__calloc(r->count, sizeof *results);
  if (!results) return no_memory(error);
  status = dw__sweep(&timer, &policy, r->candidates, r->count, results, error);
  if (!status) look_again(r);
  if (!status) status = write_records(r, results, error);
  dw__release(results);
  return status;
}

// ---- the plan -------------------------------------------------------------------------------------------------

static dw_status read_records(const char *folder, dw__tune_records *records, dw_error *error) {
  char *path = path_in(folder, "records.jsonl"), *data = NULL;
  size_t size = 0;
  if (!path) return no_memory(error);
  dw_status status = dw__file_read(path, &data, &size, error);
  if (!status) status = dw__tune_records_read(data, size, records, error);
  dw__release(path);
  dw__release(data);
  return status;
}

dw_status dw__tune_publish(const char *folder, const char *name, const dw__buf *text, dw_error *error) {
  char temporary[64];
  char *path = dw__strdup(folder);
  dw_status status = path ? make_folder(path, error) : no_memory(error);
  dw__release(path);
  if (status) return status;
  snprintf(temporary, sizeof temporary, "plan.%d.tmp", (int)getpid());
  char *from = path_in(folder, temporary), *to = path_in(folder, name);
  int fault = from && to ? 0 : ENOMEM;
  const int fd = fault ? -1 : open(from, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (!fault && fd < 0) fault = errno;
  if (!fault) fault = dw__fd_write(fd, text->data, text->size);
  if (!fault && fsync(fd)) fault = errno;
  if (fd >= 0) close(fd);
  if (!fault && rename(from, to)) fault = errno;
  dw__release(from);
  dw__release(to);
  return fault ? fail_io(folder, fault, error) : DW_OK;
}

dw_status dw__tune_plan_write(const char *folder, dw__l2_state l2, bool any_numerics, dw_error *error) {
  dw__tune_records records = {0};
  dw__choices choices = {0};
  dw__buf text = {0};
  dw_status status = read_records(folder, &records, error);
  if (!status) {
    dw__tune_records_merge(&records);
    status = dw__choices_make(&records, l2, any_numerics, &choices, error);
  }
  if (!status && !dw__choices_print(&choices, &text)) status = no_memory(error);
  if (!status) status = dw__tune_publish(folder, "plan.jsonl", &text, error);
  dw__buf_free(&text);
  dw__choices_free(&choices);
  dw__tune_records_free(&records);
  return status;
}

// ---- the whole ------------------------------------------------------------------------------------------------

char *dw__tune_folder(dw_ctx *ctx, const char *folder, const dw__board *board, const char **why) {
  char id[192];
  dw__buf path = {0};
  const char *directory = folder ? folder : dw__cache_directory(dw__ctx_cache(ctx), why);
  if (!directory) return NULL;
  dw__buf_printf(&path, folder ? "%s" : "%s/v1/tune", directory);
  if (board) {
    dw__board_id(board, id);
    dw__buf_printf(&path, "/%s", id);
  }
  if (path.failed) dw__buf_free(&path);
  return path.data;
}

static dw_status open_folder(run *r, dw_error *error) {
  const char *why = "out of memory";
  r->folder = dw__tune_folder(r->ctx, r->options->folder, &r->board, &why);
  if (!r->folder)
    return dw__fail(error, DW_BAD_ARGUMENT, "folder", why, "a folder, or a cache with a directory",
                    "what is measured has to go somewhere");
  return make_folder(r->folder, error);
}

// The worker looks for kernels where the context does.
static dw_status make_environment(run *r, dw_error *error) {
  const char *directory = dw__cache_directory(dw__ctx_cache(r->ctx), NULL);
  size_t count = 0;
  while (environ[count]) count++;
  r->environment = dw__calloc(count + 2, sizeof *r->environment);
  dw__buf entry = {0};
  dw__buf_printf(&entry, "DRAFTWOOD_CACHE_DIR=%s", directory ? directory : "");
  if (!r->environment || entry.failed) {
    dw__buf_free(&entry);
    return no_memory(error);
  }
  size_t kept = 1;
  r->environment[0] = directory ? entry.data : NULL;
  if (!directory) dw__buf_free(&entry);
  if (!directory) kept = 0;
  for (size_t i = 0; i < count; i++)
    if (!directory || strncmp(environ[i], "DRAFTWOOD_CACHE_DIR=", 20) != 0) r->environment[kept++] = environ[i];
  return DW_OK;
}

static int watch_builds(void *user, const dw_progress *progress) {
  const run *r = user;
  (void)progress;
  return dw__seconds() > r->begun + (r->end - r->begun) / 3;
}

dw_status dw__tune_build(dw_ctx *ctx, const dw_request *list, size_t count, const dw_tune_options *o, const dw__board *board,
                         dw_progress_fn progress, void *user, dw_error *error) {
  size_t total = 0;
  bool kept[DW__CANDIDATES_MAX];
  run *r = dw__calloc(1, sizeof *r);
  dw_request *requests = dw__calloc(count * DW__CANDIDATES_MAX, sizeof *requests);
  dw_variant *variants = dw__calloc(count * DW__CANDIDATES_MAX, sizeof *variants);
  dw_status status = r && requests && variants ? DW_OK : no_memory(error);
  for (size_t p = 0; p < count && !status; p++) {
    r->options = o;
    r->board = *board;
    status = read_problem(r, &list[p], error);
    if (!status) status = list_candidates(r, error);
    if (status) break;
    dw__sweep_prune(r->candidates, r->count, o->effort, kept);
    for (size_t i = 0; i < r->count; i++) {
      if (!kept[i]) continue;
      variants[total] = r->candidates[i].variant;
      requests[total] = (dw_request){.shape = list[p].shape, .variant = &variants[total]};
      total++;
    }
  }
  const dw_prepare_options options = {
    .size = sizeof options, .cubins_only = 1, .threads = o->threads, .progress = progress, .progress_user = user};
  if (!status) status = dw_prepare(ctx, requests, total, &options, error);
  dw__release(requests);
  dw__release(variants);
  dw__release(r);
  return status;
}

static bool is_mine(const dw_tune_options *o, size_t i) { return !o->shards || (int)(i % (size_t)o->shards) == o->shard; }

static dw_status tune_all(run *r, const dw_request *list, size_t count, dw_error *error) {
  size_t left = 0;
  dw_status status = greet(r, error);
  if (!status) status = open_folder(r, error);
  if (!status) status = open_journal(r, error);
  // All cubins at once, by as many threads as the host has compile slots. Those that fail are met again, one by one.
  if (!status && r->options->threads >= 0) dw__tune_build(r->ctx, list, count, r->options, &r->board, watch_builds, r, NULL);
  for (size_t i = 0; i < count; i++) left += is_mine(r->options, i);
  for (size_t i = 0; i < count && !status; i++) {
    const double present = dw__seconds();
    if (!is_mine(r->options, i)) continue;
    r->problem = i;
    if (present < r->end) status = tune_one(r, &list[i], present + (r->end - present) / (double)left, error);
    left--;
  }
  // What there is counts, also after a cancel.
  if (r->folder && (!status || status == DW_CANCELLED)) {
    char *path = path_in(r->folder, "records.jsonl");
    const bool any = path && !access(path, R_OK);
    dw__release(path);
    dw_status written = any ? dw__tune_plan_write(r->folder, r->options->warm ? DW__WARM : DW__COLD, r->options->any_numerics,
                                                  status ? NULL : error)
                            : DW_OK;
    if (!status) status = written;
  }
  return status;
}

static dw_status check_options(const dw_tune_options *o, dw_error *error) {
  if (o->gpu < 0 || o->gpu > 1023) return dw__fail_int(error, DW_BAD_ARGUMENT, "gpu", o->gpu, "0 to 1023", "%s", "");
  if ((int)o->effort < DW_QUICK || o->effort > DW_EXHAUSTIVE)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "effort", (int)o->effort, "0 to 2", "dw_effort");
  if (!(o->budget_seconds >= 0 && o->budget_seconds <= 1e6))
    return dw__fail_int(error, DW_BAD_ARGUMENT, "budget_seconds", (long long)o->budget_seconds, "0 to 1000000", "%s", "");
  if (!(o->answer_seconds >= 0 && o->answer_seconds <= 1e6))
    return dw__fail_int(error, DW_BAD_ARGUMENT, "answer_seconds", (long long)o->answer_seconds, "0 to 1000000", "%s", "");
  if (o->shards < 0 || o->shard < 0 || (o->shards ? o->shard >= o->shards : o->shard))
    return dw__fail_int(error, DW_BAD_ARGUMENT, "shard", o->shard, "0 to shards - 1", "%s", "");
  return DW_OK;
}

// Kernels would be loaded and run in another process, but times taken beside a capture are of no use, and a host that asks for it
// there means something else.
static dw_status check_capture(dw_ctx *ctx, dw_error *error) {
  dw__driver *driver;
  if (dw__ctx_is_frozen(ctx))
    return dw__fail(error, DW_FROZEN, "ctx", "a frozen context", "dw_tune before dw_freeze", "%s", "");
  if (dw__ctx_driver(ctx, &driver, NULL) || !dw__driver_capturing(driver, NULL)) return DW_OK;
  return dw__fail(error, DW_BAD_ARGUMENT, "stream", "a capture in progress", "dw_tune before the capture begins",
                  "tuning takes seconds and is no part of a graph");
}

static void close_run(run *r) {
  stop_worker(r, false);
  if (r->journal >= 0) close(r->journal);
  dw__lookup_free(&r->known);
  for (size_t i = 0; i < r->line_count; i++) dw__release(r->lines[i]);
  dw__release(r->lines);
  dw__release(r->folder);
  if (r->environment && dw__cache_directory(dw__ctx_cache(r->ctx), NULL)) dw__release(r->environment[0]);
  dw__release(r->environment);
  dw__release(r);
}

dw_status dw_tune(dw_ctx *ctx, const dw_request *list, size_t count, const dw_tune_options *given, dw_error *error) {
  dw_tune_options options = {.size = sizeof options};
  if (!ctx || (!list && count)) return dw__no_argument(error, ctx ? "list" : "ctx");
  dw_status status = given ? dw__read_sized("options", given, &options, sizeof options, error) : DW_OK;
  if (!status) status = check_options(&options, error);
  if (!status) status = check_capture(ctx, error);
  if (status || !count) return status;
  run *r = dw__calloc(1, sizeof *r);
  if (!r) return no_memory(error);
  const char *variable = secure_getenv("DRAFTWOOD_COMMAND");
  r->ctx = ctx;
  r->options = &options;
  r->command = options.command ? options.command : variable && *variable ? variable : "draftwood";
  r->begun = dw__seconds();
  r->end = r->begun + (options.budget_seconds > 0 ? options.budget_seconds : 60);
  r->answer_seconds = options.answer_seconds > 0 ? options.answer_seconds : ANSWER_SECONDS;
  r->problems = count;
  r->journal = -1;
  status = make_environment(r, error);
  if (!status) status = tune_all(r, list, count, error);
  close_run(r);
  return status;
}
