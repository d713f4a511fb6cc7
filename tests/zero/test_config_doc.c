/*
 * The tables of docs/config.md are printed from the table of keys that the reader walks, so the
 * document cannot say anything else than the program does. Without arguments this compares;
 * `test_config_doc --write` writes the tables into the document.
 */
#include "tests/common/test.h"
#include "zero/config_keys.h"

static const char doc_path[] = ZR_SOURCE_DIR "/docs/config.md";
static const char begin_mark[] = "<!-- tables: begin (build/tests/test_config_doc --write) -->\n";
static const char end_mark[] = "<!-- tables: end -->\n";

/* ---- the tables ------------------------------------------------------------ */

static const zr_config_key_t *first_key(const zr_config_key_t *section) {
    size_t n_keys;
    const zr_config_key_t *keys = zr_config_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++)
        if (zr_config_key_is_in(&keys[i], section))
            return &keys[i];
    return NULL;
}

static void print_choices(FILE *out, const zr_config_key_t *key, bool supported) {
    const char *between = "";
    for (const zr_key_choice_t *choice = key->choices; choice->name; choice++) {
        if (choice->supported != supported)
            continue;
        fprintf(out, "%s`\"%s\"`", between, choice->name);
        between = ", ";
    }
}

static void print_field(FILE *out, const zr_config_key_t *key) {
    if (key->field)
        fprintf(out, "sets `%s`; ", key->field);
    if (key->choices) {
        print_choices(out, key, true);
        fprintf(out, "; ");
    }
    const char *range = zr_key_range_text(key->range);
    fprintf(out, "%s%s%s", range, range[0] ? "; " : "", key->note);
}

static void print_inert(FILE *out, const zr_config_key_t *section, const zr_config_key_t *key) {
    const zr_config_key_t *first = first_key(section);
    if (key->note)
        fprintf(out, "no effect: %s", key->note);
    else if (first->action == ZR_KEY_FIXED)
        fprintf(out, "no effect while `%s` is `%s`", zr_config_key_name(first), first->only);
    else
        fprintf(out, "no effect: %s", section->note);
}

/** To the heading of a section; GitHub drops the dots. */
static void print_link(FILE *out, const char *path) {
    fprintf(out, "a section: see [%s](#", path);
    for (; *path; path++)
        if (*path != '.')
            fputc(*path, out);
    fprintf(out, ")");
}

static void print_here(FILE *out, const zr_config_key_t *section, const zr_config_key_t *key) {
    switch (key->action) {
    case ZR_KEY_SECTION:
        print_link(out, key->path);
        break;
    case ZR_KEY_FIELD:
        print_field(out, key);
        break;
    case ZR_KEY_FIXED:
        fprintf(out, "only `%s`: %s", key->only, key->note);
        break;
    case ZR_KEY_INERT:
        print_inert(out, section, key);
        break;
    case ZR_KEY_REFUSED:
        fprintf(out, "refused: %s", key->note);
        break;
    }
}

static void print_code(FILE *out, const char *text) {
    if (text[0])
        fprintf(out, "`%s`", text);
}

static void print_section(FILE *out, const zr_config_key_t *section) {
    zr_config_t config = zr_config_default();
    size_t n_keys;
    const zr_config_key_t *keys = zr_config_keys(&n_keys);
    fprintf(out, "\n### %s\n\n", section ? section->path : "The top of the file");
    if (section) {
        char initial = section->note[0];
        fprintf(out, "%c%s.\n\n", initial >= 'a' && initial <= 'z' ? initial - 32 : initial,
                section->note + 1);
    }
    fprintf(out, "| key | type | DeepSpeed's default | libzero's default | here |\n"
                 "|---|---|---|---|---|\n");
    for (size_t i = 0; i < n_keys; i++) {
        const zr_config_key_t *key = &keys[i];
        if (!zr_config_key_is_in(key, section))
            continue;
        char value[64] = "";
        zr_config_key_show(key, &config, value, sizeof(value));
        fprintf(out, "| `%s` | %s%s | ", zr_config_key_name(key), zr_key_type_text(key->type),
                key->flags & ZR_KEY_AUTO ? ", `\"auto\"`" : "");
        print_code(out, key->usual);
        fprintf(out, " | ");
        if (key->flags & ZR_KEY_ZERO_UNSET)
            fprintf(out, "not set");
        else
            print_code(out, value);
        fprintf(out, " | ");
        print_here(out, section, key);
        fprintf(out, " |\n");
    }
}

/** All tables; freed by the caller. */
static char *print_tables(void) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    assert_non_null(out);
    size_t n_keys;
    const zr_config_key_t *keys = zr_config_keys(&n_keys);
    print_section(out, NULL);
    for (size_t i = 0; i < n_keys; i++)
        if (keys[i].action == ZR_KEY_SECTION)
            print_section(out, &keys[i]);
    fprintf(out, "\n");
    assert_int_equal(fclose(out), 0);
    return text;
}

/* ---- the document ----------------------------------------------------------- */

static char *read_document(void) {
    FILE *file = fopen(doc_path, "rb");
    if (!file)
        fail_msg("cannot open %s", doc_path);
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

static void find_tables(char *document, char **begin_p, char **end_p) {
    char *begin = strstr(document, begin_mark);
    assert_non_null(begin);
    *begin_p = begin + strlen(begin_mark);
    *end_p = strstr(*begin_p, end_mark);
    assert_non_null(*end_p);
}

static void test_document_has_the_tables_of_the_program(void **state) {
    char *document = read_document();
    char *begin, *end;
    find_tables(document, &begin, &end);
    char *tables = print_tables();
    if (strlen(tables) != (size_t)(end - begin) || memcmp(tables, begin, strlen(tables)) != 0) {
        size_t at = 0;
        while (begin + at < end && tables[at] == begin[at])
            at++;
        fail_msg("docs/config.md differs from the table of keys at \"%.60s\", the program has "
                 "\"%.60s\"; write it with build/tests/test_config_doc --write",
                 begin + at, tables + at);
    }
    free(tables);
    free(document);
}

static void write_document(void **state) {
    char *document = read_document();
    char *begin, *end;
    find_tables(document, &begin, &end);
    char *tables = print_tables();
    FILE *file = fopen(doc_path, "wb");
    assert_non_null(file);
    fprintf(file, "%.*s%s%s", (int)(begin - document), document, tables, end);
    assert_int_equal(fclose(file), 0);
    free(tables);
    free(document);
}

int main(int argc, char **argv) {
    const struct CMUnitTest compare[] = {
        cmocka_unit_test(test_document_has_the_tables_of_the_program),
    };
    const struct CMUnitTest write[] = {
        cmocka_unit_test(write_document),
    };
    if (argc == 2 && strcmp(argv[1], "--write") == 0)
        return cmocka_run_group_tests(write, NULL, NULL);
    return cmocka_run_group_tests(compare, NULL, NULL);
}
