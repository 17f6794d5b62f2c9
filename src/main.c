// The command `draftwood`: one subcommand a step of the chain.
#include <stdio.h>
#include <string.h>

#include "cli.h"

static int cli_version(const cli_command *self, int argc, char **argv) {
  int code = cli_parse(self, (cli_options){NULL, 0}, &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("version: found \"%s\", allowed no argument", argv[1]);
  printf("draftwood %s\n", dw_version());
  return CLI_DONE;
}

static const char shape_help[] =
  "SHAPE is a preset's name or a text such as mla:h=8,t=9; a preset's fields can be replaced: kimi-k2.6-tp8,t=17.\n"
  "Fields: h heads, hk KV heads, t most draft tokens a request, qk and v (or d) widths, page, q, kv and o types (bf16, fp16;\n"
  "kv also e4m3, and record656 for MLA; o also fp32), target device class, limits native or sm_120, tree the parent of each\n"
  "node (r.0.0.1), for a tree in the code.\n"
  "--companions in place of SHAPE prints the companion kernels.";

static const char build_help[] =
  "Compiles into the cache what is not there yet and prints a table of resources. SHAPE as in draftwood gen --help.\n"
  "The variant is the rule table's choice for --batch and --kv-len, or --variant, or each that may serve (--all-variants).\n"
  "--companions in place of SHAPE builds the companion kernels; draftwood build --companions --help lists its options.";

static const char verify_help[] =
  "Runs the kernel on random problems and compares each row with an fp64 oracle. SHAPE as in draftwood gen --help.\n"
  "The variant is --variant, or the rule table's choice for the lengths and batches that are run.\n"
  "--device host runs the generated source on the CPU and needs a C++ compiler ($CXX, else g++ or clang++), --device gpu needs a GPU of the target.\n"
  "Exit 1 where a row is outside its bound, 2 where the device asked for is not there.\n"
  "--suite in place of SHAPE runs the whole contract on a GPU; draftwood verify --suite --help lists its options.\n"
  "--named in place of SHAPE runs the cases of users' reports on a GPU, by name; draftwood verify --named --help tells more.\n"
  "--random N in place of SHAPE runs N random valid calls, and wrong ones; draftwood verify --random 1 --help tells more.\n"
  "--companions in place of SHAPE checks the companion kernels; draftwood verify --companions --help lists its options.";

static const char bench_help[] =
  "Times a call on a GPU: a graph of many calls over rotating KV, replayed; median, 10th and 90th percentile of a call.\n"
  "SHAPE as in draftwood gen --help (default kimi-k2.6-tp8), for the GPU's own target. Exit 2 where there is no GPU.\n"
  "--companions in place of SHAPE times the companion kernels beside a plain copy of the same bytes.\n"
  "--predict says, with no GPU, what RTX PRO 6000 and RTX 5090 should take; draftwood bench --predict --help lists its options.";

static const char tune_help[] =
  "Measures which variant is the fastest for each shape, batch and length, and writes records and a plan that contexts choose by.\n"
  "Every candidate is compared with the fp64 oracle before it is timed, in a process of its own; SHAPE as in draftwood gen --help, for\n"
  "the GPU's own target. What was measured stays: --resume goes on after an interruption. Exit 2 where there is no GPU.";

static const char plan_help[] =
  "show lists the choices that contexts go by, export writes them to a file, digest prints what ranks have to agree in.\n"
  "show, export and digest take plans as FILEs in place of these: of several the first that has a problem counts.\n"
  "import takes plans, and records of other machines, into the cache. DRAFTWOOD_PLAN=FILE makes contexts go by that file alone,\n"
  "DRAFTWOOD_PLAN=none by the rule table.";

static const char report_help[] =
  "FILEs are measured rows (draftwood bench --record, bench/peers) and records (draftwood tune). The page has the choices with their spread, time\n"
  "against length, a roofline, a heat map of variants and every time as a table; it needs no network and prints well.";

static const char layout_help[] =
  "Bytes of a token and of a page as the kernels read them, for each plane of the pool; SHAPE as in draftwood gen --help.\n"
  "Sizes are never rounded up: padding is what --token-stride and --page-stride leave between tokens and pages.";

static const char cache_help[] =
  "ls lists the entries, stats counts them, inspect shows one (KEY: the first digits of its build key suffice), clear removes "
  "all.\ntrim removes what was used longest ago until the rest fits the limit; what is younger than an hour stays.\n"
  "explain tells where the kernel for a shape is found, or in which field the nearest entry differs.\nThe directory is $DRAFTWOOD_CACHE_DIR, else $XDG_CACHE_HOME/draftwood, else ~/.cache/draftwood.";

static const char bundle_help[] =
  "A bundle is one file with many cubins: for hosts without a compiler, for fleets, for shipping. dw_bundle_add_file and\n"
  "$DRAFTWOOD_BUNDLES (files or folders, parted by colons) put bundles in front of the cache.\n"
  "  build    compiles kernels into a bundle      ls       lists its entries      verify   checks each entry, with no GPU\n"
  "  diff     compares two bundles                merge    joins bundles          extract  writes cubins or fatbins as files\n"
  "draftwood bundle ACTION --help tells more.";

static const cli_command commands[] = {
  {"gen", "SHAPE [options]", "Prints the CUDA C++ source of a kernel", shape_help, cli_gen},
  {"build", "SHAPE... [options]", "Compiles kernels into the cache", build_help, cli_build},
  {"verify", "SHAPE [options]", "Compares a kernel with the fp64 oracle", verify_help, cli_verify},
  {"bench", "[SHAPE] [options]", "Times kernels on a GPU", bench_help, cli_bench},
  {"tune", "SHAPE... [options]", "Finds the fastest variants on a GPU", tune_help, cli_tune},
  {"plan", "show|export FILE|import FILE...|digest [FILE...] [options]", "Looks into what was tuned, and carries it on",
   plan_help, cli_plan},
  {"report", "FILE... [options]", "Makes an HTML page of measured times", report_help, cli_report},
  {"layout", "SHAPE... [options]", "Tells what a pool of KV takes, and what of it is padding", layout_help, cli_layout},
  {"presets", "[options]", "Lists the shapes of well-known models", NULL, cli_presets},
  {"cache", "ls|stats|trim|clear|inspect KEY|explain SHAPE [options]", "Looks into the cache of compiled kernels", cache_help,
   cli_cache},
  {"bundle", "build|ls|verify|diff|merge|extract [arguments]", "Makes bundles of compiled kernels and looks into them",
   bundle_help, cli_bundle},
  {"doctor", "[options]", "Tells what was found here, and what to do about what was not", NULL, cli_doctor},
  {"version", "", "Prints the version", NULL, cli_version},
};

static int help(FILE *to) {
  fputs("draftwood: tree-verify attention kernels for speculative decoding, made to order for one shape\n\n"
        "usage: draftwood COMMAND [arguments]\n\ncommands:\n",
        to);
  for (size_t i = 0; i < DW__COUNT(commands); i++) fprintf(to, "  %-9s %s\n", commands[i].name, commands[i].summary);
  fputs("\ndraftwood COMMAND --help tells more. Exit status: 0 done, 1 it ran and something is wrong, 2 bad usage.\n", to);
  return to == stdout ? CLI_DONE : CLI_USAGE;
}

static int unknown_command(const char *word) {
  static const char *const forms[][2] = {{"explain", "cache explain"},
                                         {"predict", "bench --predict"}};  // what is part of another
  for (size_t i = 0; i < DW__COUNT(forms); i++)
    if (!strcmp(word, forms[i][0])) return cli_usage("unknown command %s, did you mean %s?", word, forms[i][1]);
  const char *names[DW__COUNT(commands)];
  for (size_t i = 0; i < DW__COUNT(commands); i++) names[i] = commands[i].name;
  const char *nearest = cli_nearest(word, names, DW__COUNT(names));
  if (nearest) return cli_usage("unknown command %s, did you mean %s?", word, nearest);
  return cli_usage("unknown command %s; draftwood --help lists all", word);
}

// Results that could not be written (a full disk, a closed pipe) are no results.
static int finish(int code) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  fputs("draftwood: the output could not be written\n", stderr);
  return code == CLI_DONE ? CLI_WRONG : code;
}

int main(int argc, char **argv) {
  if (argc < 2) return help(stderr);
  char flag[] = "--help", *asked[] = {argv[0], argc == 3 ? argv[2] : NULL, flag};
  if (argc == 3 && strcmp(argv[1], "help") == 0) argv = asked;  // help COMMAND is COMMAND --help
  const char *word = argv[1];
  if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) return finish(help(stdout));
  if (strcmp(word, "--version") == 0) word = "version";
  for (size_t i = 0; i < DW__COUNT(commands); i++)
    if (strcmp(word, commands[i].name) == 0) return finish(commands[i].run(&commands[i], argc - 1, argv + 1));
  return unknown_command(word);
}
