// A stand-in for `draftwood tune --worker`: its times come from the variant's text and a random number, and it crashes, hangs or is wrong
// where it is told to. STAND_IN holds settings: "noise=0.004 drift=0.01 crash=TEXT hang=TEXT wrong=TEXT late=TEXT mute=1 sleep=MS seed=N
// log=FILE tie=1", where TEXT is a part of a variant's text; late: crashes when it is timed.
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t chance_state;
static double chance(void) {
  chance_state = chance_state * 6364136223846793005u + 1442695040888963407u;
  return (double)(chance_state >> 11) / 9007199254740992.0;
}

// The setting's text, or NULL.
static const char *setting(const char *name) {
  static char found[8][128];
  static int used;
  const char *all = getenv("STAND_IN");
  const size_t size = strlen(name);
  for (const char *at = all ? all : ""; *at; at += strcspn(at, " "), at += *at == ' ') {
    if (strncmp(at, name, size) != 0 || at[size] != '=') continue;
    char *to = found[used++ % 8];
    snprintf(to, 128, "%.*s", (int)strcspn(at + size + 1, " "), at + size + 1);
    return to;
  }
  return NULL;
}

static int asked_for(const char *what, const char *variant) {
  const char *part = setting(what);
  return part && strstr(variant, part) != NULL;
}

static double number(const char *name, double usual) {
  const char *text = setting(name);
  return text ? strtod(text, NULL) : usual;
}

static void note(const char *what, const char *variant) {
  const char *path = setting("log");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s %s\n", what, variant);
  fclose(file);
}

// 40 to 60 us, by the variant alone: the same in every process.
static double truth(const char *variant) {
  unsigned hash = 5381;
  for (const char *c = variant; *c; c++) hash = hash * 33 + (unsigned char)*c;
  return setting("tie") ? 50 : 40 + hash % 1000 / 50.0;
}

static double noisy(const char *variant) {
  double bell = -6;
  for (int i = 0; i < 12; i++) bell += chance();
  return truth(variant) * (1 + number("noise", 0.002) * bell);
}

static void misbehave(const char *what, const char *variant) {
  if (!strcmp(what, "prepare") && asked_for("crash", variant)) {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer has a handler
    raise(SIGSEGV);
  }
  if (!strcmp(what, "time") && asked_for("late", variant)) raise(SIGABRT);
  while (!strcmp(what, "prepare") && asked_for("hang", variant)) pause();
}

static json_t *answer(const char *what, const char *variant) {
  if (!strcmp(what, "hello") || !strcmp(what, "problem"))
    return json_pack("{s:{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}, s:s, s:s}", "board", "name", "Stand-in GPU", "cc", 90,
                     "sms", 132, "l2_bytes", 50 << 20, "sm_mhz", 1980, "memory_mhz", 3201, "power_watts", 700, "mig", 0, "ecc",
                     1, "driver", "1.2.3", "conditions", setting("conditions") ? setting("conditions") : "");
  if (!strcmp(what, "time")) return json_pack("{s:s, s:f, s:s}", "verdict", "sound", "us", noisy(variant), "why", "");
  const int wrong = !strcmp(what, "prepare") && asked_for("wrong", variant);
  return json_pack("{s:s, s:s, s:s, s:f, s:s}", "verdict", wrong ? "wrong" : "sound", "build_key",
                   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "compiler", "nvrtc 13.0.88", "rel_err",
                   wrong ? 0.7 : 0.0017, "why", wrong ? "row 3 differs" : "");
}

int main(void) {
  char *line = NULL;
  size_t size = 0;
  chance_state = (uint64_t)number("seed", (double)getpid());
  if (setting("mute")) {
    puts("what is this");
    return 1;
  }
  while (getline(&line, &size, stdin) > 0) {
    json_t *request = json_loads(line, 0, NULL);
    const char *what = json_string_value(json_object_get(request, "do"));
    const char *variant = json_string_value(json_object_get(request, "variant"));
    note(what, variant ? variant : "");
    misbehave(what, variant ? variant : "");
    const long ms = (long)number("sleep", 0);
    if (ms && strcmp(what, "hello")) nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    json_t *reply = answer(what, variant ? variant : "");
    json_dumpf(reply, stdout, JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
    json_decref(reply);
    json_decref(request);
  }
  free(line);
  return 0;
}
