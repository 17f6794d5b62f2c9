// draftwood layout: what a pool of a shape's KV takes, and how much of it is padding.
#include <stdio.h>

#include "cli.h"

typedef struct asked {
  int token_stride, page_stride;  // elements; 0: tight
  cli_list lengths;
} asked;

// Of one array of pages.
typedef struct plane {
  const char *name;
  long long record, token, page;  // bytes: what is used of a token, from token to token, from page to page
} plane;

static int strides(const asked *want, const dw_shape *shape, const char *name, int elements, plane *made) {
  const long long size = (long long)dw__dtype_size(shape->kv), token = want->token_stride ? want->token_stride : elements;
  const long long page = want->page_stride ? want->page_stride : token * shape->page;
  if (token < elements)
    return cli_usage("layout: --token-stride: found %d, allowed %d or more, the elements of a token", want->token_stride,
                     elements);
  if (page < token * (shape->page - 1) + elements)
    return cli_usage("layout: --page-stride: found %d, allowed %lld or more, the elements of a page", want->page_stride,
                     token * (shape->page - 1) + elements);
  *made = (plane){name, elements * size, token * size, page * size};
  return CLI_GO_ON;
}

static void print_plane(const dw_shape *shape, const plane *p) {
  const long long used = p->record * shape->page, padding = p->page - used;
  printf("%-6s %12lld %12lld %11d %12lld %13lld %6.1f %%\n", p->name, p->record, p->token, shape->page, p->page, padding,
         100. * (double)padding / (double)p->page);
}

// Pages are whole: the end of a request's last one is held and not used.
static void print_lengths(const asked *want, const dw_shape *shape, const plane *planes, int count) {
  long long pages = 0, tokens = 0, held = 0, used = 0;
  for (int i = 0; i < want->lengths.count; i++) {
    pages += dw__ceil_div(want->lengths.values[i], shape->page);
    tokens += want->lengths.values[i];
  }
  for (int i = 0; i < count; i++) held += pages * planes[i].page, used += tokens * planes[i].record;
  printf("%d requests, %lld tokens: %lld pages a layer, %lld bytes held, %lld used, %.1f %% not used\n", want->lengths.count,
         tokens, pages, held, used, held ? 100. * (double)(held - used) / (double)held : 0.);
}

static int print_layout(const asked *want, const char *text) {
  dw_shape shape;
  dw_error error = {0};
  char canonical[DW_TEXT_MAX];
  plane planes[2];
  if (dw_shape_parse(text, &shape, &error)) return cli_error(&error);
  const bool latent = shape.attention == DW_MLA;
  int code = strides(want, &shape, latent ? "latent" : "K", shape.kv_heads * dw__kv_record(&shape), &planes[0]);
  if (code == CLI_GO_ON && !latent) code = strides(want, &shape, "V", shape.kv_heads * shape.head_dim_v, &planes[1]);
  if (code != CLI_GO_ON) return code;
  dw_shape_print(&shape, canonical, sizeof canonical);
  printf("%s\n%-6s %12s %12s %11s %12s %13s %8s\n", canonical, "plane", "token bytes", "token stride", "page tokens",
         "page bytes", "page padding", "share");
  for (int i = 0; i < (latent ? 1 : 2); i++) print_plane(&shape, &planes[i]);
  if (want->lengths.count) print_lengths(want, &shape, planes, latent ? 1 : 2);
  return CLI_DONE;
}

int cli_layout(const cli_command *self, int argc, char **argv) {
  asked want = {.token_stride = 0};
  const cli_option options[] = {
    {"token-stride", "N", CLI_INT, &want.token_stride, 1, 1 << 24, "elements from token to token (as many as a token has)"},
    {"page-stride", "N", CLI_INT, &want.page_stride, 1, 1 << 30, "elements from page to page (page x token stride)"},
    {"lengths", "N,...", CLI_INTS, &want.lengths, 0, 1 << 24, "tokens of requests: what they hold and use"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc < 2) return cli_usage("layout: found no shape; draftwood layout --help tells more");
  for (int i = 1; i < argc; i++)
    if ((code = print_layout(&want, argv[i])) != CLI_DONE) return code;
  return CLI_DONE;
}
