/*
 * What documents have between marks is printed here: the options of all programs from their rows,
 * DeepSpeed's keys from the table that the reader walks, figures of hardware, and the program that
 * a guide shows from its file. So documents cannot say anything else than the programs do. Without
 * arguments this compares; `test_config_doc --write` writes into the documents.
 */
#include <math.h>

#include "tests/common/test.h"
#include "examples/bench/bench.h"
#include "examples/capacity/options.h"
#include "examples/checkpoint/commands.h"
#include "examples/plan/ask.h"
#include "examples/plan/band.h"
#include "examples/plan/options.h"
#include "examples/train/options.h"
#include "zero/config/keys.h"

#define DOCS ZR_SOURCE_DIR "/docs/"

static char *read_document(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long n_bytes = ftell(file);
    assert_true(n_bytes > 0);
    rewind(file);
    char *text = (char *)malloc((size_t)n_bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)n_bytes, file), n_bytes);
    text[n_bytes] = '\0';
    fclose(file);
    return text;
}

/* ---- the tables ------------------------------------------------------------ */

typedef struct table {
    FILE *out;
    const zr_key_section_t *section;
    bool are_options;
} table_t;

/* The words of a list, each as code. */
static void print_words(FILE *out, const char *words) {
    const char *between = "";
    while (words != NULL && *words != '\0') {
        size_t n = strcspn(words, " ");
        fprintf(out, "%s`%.*s`", between, (int)n, words);
        between = ", ";
        words += n + strspn(words + n, " ");
    }
}

static void print_choices(FILE *out, const zr_option_t *option) {
    const char *between = "";
    for (const zr_option_choice_t *c = option->choices; !zr_option_choice_is_last(c); c++) {
        if (c->json != NULL && c->json[0] == '\0')
            continue;
        fprintf(out, c->json != NULL ? "%s`%s`" : "%s`\"%s\"`", between,
                c->json != NULL ? c->json : c->name);
        between = ", ";
    }
}

/* What a file has for a field. */
static void print_value(FILE *out, const zr_option_t *option, const zr_config_t *config) {
    const zr_option_choice_t *c = zr_option_choices(option);
    int value = (int)zr_option_number(option, config);
    while (c != NULL && !zr_option_choice_is_last(c) && c->value != value)
        c++;
    if (c != NULL && c->json != NULL && c->json[0] != '\0')
        fprintf(out, "`%s`", c->json);
    else if (c != NULL && c->json == NULL && c->name != NULL && option->field != NULL)
        fprintf(out, "`\"%s\"`", c->name);
    else if (strcmp(zr_option_text(option, config).text, "all") == 0)
        fprintf(out, "`-1`");
    else if ((option->flags & ZR_OPTION_OR_AUTO) != 0)
        fprintf(out, "`\"auto\"`");
    else if ((option->flags & ZR_OPTION_UNSET0) != 0)
        fprintf(out, "not set");
    else if (c == NULL && option->type != ZR_OPTION_PATHS)
        fprintf(out, "`%s`", zr_option_text(option, config).text);
}

/* Defaults of a list's elements. */
static void print_defaults(FILE *out, const zr_key_t *key, bool are_ours) {
    zr_config_t config = zr_config_default();
    size_t n = key->n_elements > 0 ? key->n_elements : 1;
    for (size_t i = 0; i < n; i++) {
        fprintf(out, i > 0 ? ", " : "");
        if (are_ours)
            print_value(out, &key->option[i], &config);
        else if (key->option[i].usual != NULL)
            fprintf(out, "`%s`", key->option[i].usual);
    }
}

static bool print_option_key(void *context, const zr_key_t *key) {
    table_t *table = context;
    FILE *out = table->out;
    const zr_option_t *option = key->option;
    if (option == NULL || zr_key_section_of(key) != table->section)
        return true;
    fprintf(out, "| `%s` | ", zr_key_name(key));
    if (key->n_elements > 0)
        fprintf(out, "a list of %zu numbers", key->n_elements);
    else
        fprintf(out, "%s", zr_json_kind_text(zr_option_json_kind(option)));
    fprintf(out, "%s | ", (option->flags & ZR_OPTION_FILE_AUTO) != 0 ? ", `\"auto\"`" : "");
    print_defaults(out, key, false);
    fprintf(out, " | ");
    print_defaults(out, key, true);
    fprintf(out, " | ");
    for (size_t i = 0; i == 0 || i < key->n_elements; i++)
        if (option[i].field != NULL)
            fprintf(out, option[i].name != NULL ? "%s`%s`, `--%s`" : "%s`%s`", i > 0 ? ", " : "",
                    option[i].field, option[i].name);
    fprintf(out, option->field != NULL ? "; " : "");
    if (option->choices != NULL)
        print_choices(out, option);
    else if (zr_option_json_kind(option) != ZR_JSON_BOOL)
        fprintf(out, "%s", zr_option_range(option).text);
    bool has_range = zr_option_range(option).text[0] != '\0' &&
                     (option->choices != NULL || option->type != ZR_OPTION_SWITCH);
    fprintf(out, has_range ? "; " : "");
    for (size_t i = 0; i == 0 || i < key->n_elements; i++)
        fprintf(out, "%s%s%s%s", i > 0 ? "; " : "", option[i].help,
                option[i].note != NULL ? "; " : "", option[i].note != NULL ? option[i].note : "");
    fprintf(out, " |\n");
    return true;
}

static void print_rules(FILE *out, const zr_key_section_t *section) {
    size_t n = 0;
    const zr_key_rule_t *rules = zr_key_rules(&n);
    const char *head = "| other keys | allowed | why |\n|---|---|---|\n";
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rules[i].section, section->path) != 0)
            continue;
        fprintf(out, "%s| ", head);
        head = "";
        print_words(out, rules[i].names);
        if (rules[i].only == NULL || strcmp(rules[i].only, "null") == 0)
            fprintf(out, " | none | %s |\n", rules[i].note);
        else if (strcmp(rules[i].only, ZR_KEY_ANY) == 0)
            fprintf(out, " | any | no effect: %s |\n", rules[i].note);
        else
            fprintf(out, " | `%.*s`%s | %s |\n", (int)strcspn(rules[i].only, " "), rules[i].only,
                    strstr(rules[i].only, "| #") != NULL  ? "; numbers are ignored, with a message"
                    : strstr(rules[i].only, "| ") != NULL ? "; `true` is ignored, with a message"
                                                          : "",
                    rules[i].note);
    }
}

static bool has_options(void *context, const zr_key_t *key) {
    table_t *table = context;
    table->are_options |= key->option != NULL && zr_key_section_of(key) == table->section;
    return !table->are_options;
}

static void print_section(FILE *out, const zr_key_section_t *section) {
    table_t table = {.out = out, .section = section};
    fprintf(out, "\n### %s\n\n", section->path[0] != '\0' ? section->path : section->note);
    if (section->path[0] != '\0') {
        char initial = section->note[0];
        fprintf(out, "%c%s.\n\n", initial >= 'a' && initial <= 'z' ? initial - 32 : initial,
                section->note + 1);
    }
    zr_keys_each(has_options, &table);
    if (table.are_options) {
        fprintf(out, "| key | type | DeepSpeed's default | libzero's default | sets |\n"
                     "|---|---|---|---|---|\n");
        zr_keys_each(print_option_key, &table);
        fprintf(out, "\n");
    }
    print_rules(out, section);
}

static void print_off_sections(FILE *out) {
    size_t n = 0;
    const zr_key_section_t *sections = zr_key_sections(&n);
    fprintf(out, "\n### Sections that are not supported\n\nThey may be there while they are off, "
                 "with these keys, which have no effect then.\n\n| section | must be | why | its "
                 "other keys |\n|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        if (sections[i].off == NULL)
            continue;
        fprintf(out, "| `%s` | `\"%s\": %s` | %s | ", sections[i].path, sections[i].off,
                sections[i].only, sections[i].why);
        print_words(out, sections[i].names);
        fprintf(out, " |\n");
    }
}

/** All tables of keys. */
static void print_keys(FILE *out, int unused) {
    size_t n = 0;
    const zr_key_section_t *sections = zr_key_sections(&n);
    for (size_t i = 0; i < n; i++)
        if (sections[i].off == NULL)
            print_section(out, &sections[i]);
    print_off_sections(out);
    fprintf(out, "\n");
}

/* ---- options of programs ------------------------------------------------------ */

static void print_options(FILE *out, const char *program, const options_table_t *table,
                          const void *defaults) {
    fprintf(out, "\n## %s\n\n", program);
    options_markdown(table, defaults, out);
}

static void print_commands(FILE *out, const char *program, const command_t *const *commands,
                           size_t n) {
    for (size_t i = 0; i < n; i++) {
        const command_t *command = commands[i];
        options_table_t table = command_table(program, command);
        void *defaults = calloc(1, command->options_bytes);
        assert_non_null(defaults);
        if (command->defaults != NULL)
            memcpy(defaults, command->defaults, command->options_bytes);
        char name[64];
        snprintf(name, sizeof(name), "%s %s", program, command->name);
        print_options(out, name, &table, defaults);
        free(defaults);
    }
}

static void print_programs(FILE *out, int unused) {
    static const command_t *const checkpoint[] = {&checkpoint_list, &checkpoint_verify,
                                                  &checkpoint_export, &checkpoint_import};
    static const command_t *const bench[] = {
        &bench_adam, &bench_kernels,    &bench_matmul, &bench_step,     &bench_alloc,
        &bench_io,   &bench_checkpoint, &bench_comm,   &bench_hardware, &bench_plan};
    train_options_t train = train_options_default();
    plan_options_t plan = plan_options_default();
    capacity_options_t capacity = capacity_options_default();
    print_options(out, "zero-train", &train_table, &train);
    print_options(out, "zero-plan", &plan_table, &plan);
    print_options(out, "zero-capacity", &capacity_table, &capacity);
    print_commands(out, "zero-checkpoint", checkpoint, N_OF(checkpoint));
    print_commands(out, "zero-bench", bench, N_OF(bench));
    fprintf(out, "\n");
}

/* ---- figures of hardware ------------------------------------------------------- */

static void print_hardware(FILE *out, int unused) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    fprintf(out, "\n| figure | what it is | `kind` |\n|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        fprintf(out, "| `%s` | %s | %s |\n", figures[i].name, figures[i].what,
                figures[i].is_of_cuda ? "cuda" : "both");
    fprintf(out, "\n");
}

/* ---- the program of a guide ------------------------------------------------------ */

/** Section `which` of the example, from one line of dashes with its title to the next; the first
 * has what comes before. The last one's number is the document's to have: see sections_are_all. */
#define EXAMPLE ZR_SOURCE_DIR "/examples/library/blocks.c"
static const char section_mark[] = "/* ---- ";

static size_t n_sections(const char *text) {
    size_t n = 1;
    while ((text = strstr(text, section_mark)) != NULL) {
        n++;
        text++;
    }
    return n;
}

static void print_section_of_example(FILE *out, int which) {
    char *text = read_document(EXAMPLE), *begin = text;
    for (int i = 0; i < which; i++) {
        begin = strstr(begin + (i > 0), section_mark);
        assert_non_null(begin);
    }
    char *end = strstr(begin + 1, section_mark);
    size_t n = end != NULL ? (size_t)(end - begin) : strlen(begin);
    while (n > 0 && begin[n - 1] == '\n')
        n--;
    fprintf(out, "```c\n%.*s\n```\n", (int)n, begin);
    free(text);
}

/* ---- DeepSpeed's estimator --------------------------------------------------- */

typedef struct estimated {
    const char *model;
    int n_ranks, stage;
    const char *optimizer, *params;
} estimated_t;

#define RANKS_PER_NODE 8

/** Bytes of a GPU and of a node's CPUs, by the formulas of estimate_zero2_model_states_mem_needs
 * and estimate_zero3_model_states_mem_needs with their defaults; `largest` is the parameters of the
 * largest module. */
static void estimate(const estimated_t *of, double params, double largest, double *gpu_p,
                     double *cpu_p) {
    const double buffers = 1.5, ranks = of->n_ranks, nodes = ranks / RANKS_PER_NODE;
    bool has_cpu = strcmp(of->optimizer, "cpu") == 0, has_params = strcmp(of->params, "cpu") == 0;
    double here = of->stage == 3 ? 4 * largest : has_cpu ? 2 * params : 4 * params;
    if (of->stage == 3 && !(has_cpu && has_params))
        here += (has_cpu ? 2 : 18) * params / ranks;
    else if (of->stage == 2 && !has_cpu)
        here += 16 * params / ranks;
    double there = of->stage == 2 ? params * (has_cpu ? fmax(4 * ranks, 16) : 4 * RANKS_PER_NODE)
                   : has_cpu      ? params * (has_params ? 18 : 16) / nodes
                                  : largest * 4 * RANKS_PER_NODE;
    *gpu_p = here;
    *cpu_p = buffers * there;
}

static zr_run_plan_t planned_of(const estimated_t *of, plan_options_t *options) {
    char words[16][64], *argv[16];
    int argc = 0;
    zr_run_rows_t rows;
    zr_log_t log = {.level = ZR_LOG_ERROR, .rank = -1};
    snprintf(words[2], sizeof(words[2]), "%s", of->model);
    snprintf(words[4], sizeof(words[4]), "%d", of->n_ranks);
    snprintf(words[6], sizeof(words[6]), "%d", of->stage);
    snprintf(words[8], sizeof(words[8]), "%s", of->optimizer);
    snprintf(words[10], sizeof(words[10]), "--offload-params=%s", of->params);
    char *const all[] = {"zero-plan",
                         "--model",
                         words[2],
                         "--ranks",
                         words[4],
                         "--stage",
                         words[6],
                         "--offload-optimizer",
                         words[8],
                         "--hardware=" ZR_SOURCE_DIR "/hardware/8x-a100-80g.json",
                         words[10],
                         "--dtype=bf16",
                         "--micro-batch=1",
                         "--recompute=unit",
                         "--shard-group-size=all"};
    for (; argc < (int)N_OF(all); argc++)
        argv[argc] = all[argc];
    assert_int_equal(plan_options_parse(argc, argv, &log, options), ZR_OK);
    assert_int_equal(plan_search(options, &log, NULL, &rows), ZR_OK);
    assert_int_equal(rows.n, 1);
    zr_run_plan_t plan = rows.all[0].one.plan;
    zr_run_rows_free(&rows);
    return plan;
}

static double gib(double bytes) {
    return bytes / (1 << 30);
}

static void print_estimates(FILE *out, int unused) {
    static const estimated_t cases[] = {
        {"gpt2-xl", 8, 2, "none", "none"},   {"gpt2-xl", 8, 2, "cpu", "none"},
        {"gpt3-6.7b", 8, 2, "none", "none"}, {"gpt3-6.7b", 8, 2, "cpu", "none"},
        {"gpt3-6.7b", 8, 3, "none", "none"}, {"gpt3-13b", 8, 3, "none", "none"},
        {"gpt3-13b", 8, 3, "cpu", "none"},   {"gpt3-13b", 8, 3, "cpu", "cpu"},
        {"gpt3-13b", 64, 3, "none", "none"}, {"gpt3-175b", 64, 3, "cpu", "cpu"}};
    fprintf(out, "| model | ranks | stage | optimizer, parameters | GPU: estimate | plan, states | "
                 "plan, all | CPU of a node: estimate | plan |\n|---|---|---|---|---|---|---|---|"
                 "---|\n");
    for (size_t i = 0; i < N_OF(cases); i++) {
        static plan_options_t options;
        zr_run_plan_t plan = planned_of(&cases[i], &options);
        zr_model_sizes_t sizes = zr_model_shape_sizes(&options.run.shape);
        double channels = (double)sizes.channels, gpu = 0, cpu = 0, states = 0;
        double largest = channels * fmax((double)sizes.vocab, 4 * channels + 4);
        static const zr_tag_t tags[] = {ZR_TAG_PARAMETERS, ZR_TAG_GATHERED_PARAMETERS,
                                        ZR_TAG_GRADIENTS, ZR_TAG_GRADIENT_BUCKETS,
                                        ZR_TAG_OPTIMIZER_STATE};
        estimate(&cases[i], (double)zr_model_shape_n_params(&options.run.shape), largest, &gpu,
                 &cpu);
        for (size_t k = 0; k < N_OF(tags); k++)
            states += (double)plan.tiers[ZR_TIER_DEVICE].by_tag[tags[k]].peak;
        fprintf(out, "| %s | %d | %d | %s, %s | %.1f | %.1f | %.1f | %.0f | %.0f |\n",
                cases[i].model, cases[i].n_ranks, cases[i].stage, cases[i].optimizer,
                cases[i].params, gib(gpu), gib(states),
                gib((double)plan.tiers[ZR_TIER_DEVICE].reserved.peak), gib(cpu),
                gib(RANKS_PER_NODE * (double)plan.tiers[ZR_TIER_HOST].reserved.peak));
    }
    fprintf(out, "\n");
}

/** What is printed between two marks of a document, and which of several it is. */
typedef struct part {
    const char *path, *name;
    void (*print)(FILE *out, int which);
    int which;
} part_t;

#define OWN_MODEL(which)                                                                           \
    { DOCS "guide/own-model.md", "code " #which, print_section_of_example, which }
static const part_t parts[] = {{DOCS "reference/options.md", "options", print_programs, 0},
                               {DOCS "reference/deepspeed.md", "keys", print_keys, 0},
                               {DOCS "reference/hardware.md", "figures", print_hardware, 0},
                               {DOCS "guide/plan.md", "estimates", print_estimates, 0},
                               OWN_MODEL(0),
                               OWN_MODEL(1),
                               OWN_MODEL(2),
                               OWN_MODEL(3)};
#define N_PARTS (N_OF(parts))

/** Freed by the caller. */
static char *print_part(const part_t *part) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    assert_non_null(out);
    part->print(out, part->which);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* ---- the document ----------------------------------------------------------- */

static void find_part(const part_t *part, char *document, char **begin_p, char **end_p) {
    char begin[96], end[96];
    snprintf(begin, sizeof(begin), "<!-- %s: begin (build/tests/test_config_doc --write) -->\n",
             part->name);
    snprintf(end, sizeof(end), "<!-- %s: end -->\n", part->name);
    *begin_p = strstr(document, begin);
    if (*begin_p == NULL)
        fail_msg("%s has no line %s", part->path, begin);
    *begin_p += strlen(begin);
    *end_p = strstr(*begin_p, end);
    assert_non_null(*end_p);
}

static void document_has_what_the_program_has(void **state) {
    for (size_t i = 0; i < N_PARTS; i++) {
        char *document = read_document(parts[i].path), *text = print_part(&parts[i]), *begin, *end;
        find_part(&parts[i], document, &begin, &end);
        size_t at = 0;
        while (begin + at < end && text[at] == begin[at])
            at++;
        if (begin + at != end || text[at] != '\0')
            fail_msg("%s differs from the rows at \"%.60s\", the program has \"%.60s\"; write it "
                     "with build/tests/test_config_doc --write",
                     parts[i].path, begin + at, text + at);
        free(text);
        free(document);
    }
}

static void write_document(void **state) {
    for (size_t i = 0; i < N_PARTS; i++) {
        char *document = read_document(parts[i].path), *text = print_part(&parts[i]), *begin, *end;
        find_part(&parts[i], document, &begin, &end);
        FILE *file = fopen(parts[i].path, "wb");
        assert_non_null(file);
        fprintf(file, "%.*s%s%s", (int)(begin - document), document, text, end);
        assert_int_equal(fclose(file), 0);
        free(text);
        free(document);
    }
}

/** A guide has every section of its program. */
static void guide_has_the_whole_program(void **state) {
    char *text = read_document(EXAMPLE);
    size_t n = 0;
    for (size_t i = 0; i < N_PARTS; i++)
        n += parts[i].print == print_section_of_example;
    assert_int_equal(n, n_sections(text));
    free(text);
}

/* ---- bands of errors ----------------------------------------------------------- */

/** Cells of a line of a table; as many as there are. */
static size_t cells_of(char *line, char *cells[16]) {
    size_t n = 0;
    line += *line == '|';
    for (char *cell; n < 16 && (cell = strsep(&line, "|")) != NULL; n++)
        cells[n] = cell + strspn(cell, " ");
    return n;
}

static void add_run(plan_band_t *band, double ratio) {
    band->least = band->n_runs == 0 ? ratio : fmin(band->least, ratio);
    band->most = fmax(band->most, ratio);
    band->n_runs++;
}

/** What the programs say of measured steps and planned ones is what tables of documents have: those
 * of runs on the host with the error of the plan, those of other programs with both rates. */
static void bands_are_those_of_documents(void **state) {
    plan_band_t found[3] = {{.n_runs = 0}, {.n_runs = 0}, {.n_runs = 0}};
    char *simulation = read_document(DOCS "internals/simulation.md"),
         *scaling = read_document(DOCS "internals/scaling.md");
    char *cells[16], *rest = strstr(simulation, "| measured ms | predicted ms | error |");
    assert_non_null(rest);
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line == '|';)
        if (cells_of(line, cells) >= 10 && atof(cells[0]) > 0)
            add_run(&found[0], 1 / (1 + atof(cells[9]) / 100));
    rest = strstr(scaling, "<!-- measured -->\n");
    *strstr(rest, "<!-- measured: end -->") = '\0';
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (cells_of(line, cells) >= 9 && atof(cells[0]) > 0)
            add_run(&found[atoi(cells[3]) > 8 ? 2 : 1], atof(cells[7]) / atof(cells[6]));
    size_t n = 0;
    const plan_band_t *bands = plan_bands(&n);
    assert_int_equal(n, N_OF(found));
    for (size_t i = 0; i < n; i++)
        if (bands[i].n_runs != found[i].n_runs || fabs(bands[i].least - found[i].least) > 0.006 ||
            fabs(bands[i].most - found[i].most) > 0.006)
            fail_msg("%s: %s has %zu runs, %.3f to %.3f", bands[i].what, bands[i].document,
                     found[i].n_runs, found[i].least, found[i].most);
    free(simulation);
    free(scaling);
}

int main(int argc, char **argv) {
    const struct CMUnitTest compare[] = {cmocka_unit_test(document_has_what_the_program_has),
                                         cmocka_unit_test(guide_has_the_whole_program),
                                         cmocka_unit_test(bands_are_those_of_documents)};
    const struct CMUnitTest write[] = {cmocka_unit_test(write_document)};
    if (argc == 2 && strcmp(argv[1], "--write") == 0)
        return cmocka_run_group_tests(write, NULL, NULL);
    return cmocka_run_group_tests(compare, NULL, NULL);
}
