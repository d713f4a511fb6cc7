/* One walk over all keys of DeepSpeed's that are known, whatever table they stand in. */
#include "zero/config/keys.h"

#include <stdio.h>
#include <string.h>

typedef struct walk {
    bool (*visit)(void *context, const zr_key_t *key);
    void *context;
    bool is_over;
} walk_t;

const char *zr_key_name(const zr_key_t *key) {
    const char *dot = strrchr(key->path, '.');
    return dot != NULL ? dot + 1 : key->path;
}

const zr_key_section_t *zr_key_section_of(const zr_key_t *key) {
    size_t n = 0;
    const zr_key_section_t *sections = zr_key_sections(&n);
    for (size_t i = 0; i < n; i++)
        if (strlen(sections[i].path) == key->n_section &&
            strncmp(sections[i].path, key->path, key->n_section) == 0)
            return &sections[i];
    return NULL;
}

static void visit(walk_t *walk, zr_key_t key) {
    size_t n_name = strlen(zr_key_name(&key)), n_path = strlen(key.path);
    key.n_section = n_path > n_name ? n_path - n_name - 1 : 0;
    if (!walk->is_over)
        walk->is_over = !walk->visit(walk->context, &key);
}

/* The words of a list, each as a key of a section. */
static void visit_names(walk_t *walk, const char *section, const char *names, zr_key_t key) {
    while (!walk->is_over && names != NULL && *names != '\0') {
        size_t n = strcspn(names, " ");
        snprintf(key.path, sizeof(key.path), "%s%s%.*s", section, *section != '\0' ? "." : "",
                 (int)n, names);
        visit(walk, key);
        names += n + strspn(names + n, " ");
    }
}

static void visit_options(walk_t *walk) {
    size_t n = 0;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++) {
        zr_key_t key = {.option = &options[i]};
        if (options[i].key == NULL)
            continue;
        size_t stem = strcspn(options[i].key, "[");
        snprintf(key.path, sizeof(key.path), "%.*s", (int)stem, options[i].key);
        for (size_t k = i; options[i].key[stem] != '\0' && k < n; k++, key.n_elements++)
            if (options[k].key == NULL || strncmp(options[k].key, options[i].key, stem + 1) != 0)
                break;
        if (key.n_elements > 0)
            i += key.n_elements - 1;
        visit(walk, key);
    }
}

void zr_keys_each(bool (*visit_key)(void *context, const zr_key_t *key), void *context) {
    walk_t walk = {.visit = visit_key, .context = context};
    size_t n_rules = 0, n_sections = 0;
    const zr_key_rule_t *rules = zr_key_rules(&n_rules);
    const zr_key_section_t *sections = zr_key_sections(&n_sections);
    visit_options(&walk);
    for (size_t i = 0; i < n_rules; i++)
        visit_names(&walk, rules[i].section, rules[i].names, (zr_key_t){.rule = &rules[i]});
    for (size_t i = 1; i < n_sections; i++) { /* but for the top of the file */
        visit_names(&walk, "", sections[i].path, (zr_key_t){.section = &sections[i]});
        visit_names(&walk, sections[i].path, sections[i].off, (zr_key_t){0});
        visit_names(&walk, sections[i].path, sections[i].names, (zr_key_t){0});
    }
}

typedef struct search {
    const char *path;
    zr_key_t *key_p;
    bool found;
} search_t;

static bool is_other(void *context, const zr_key_t *key) {
    search_t *search = context;
    search->found = strcmp(key->path, search->path) == 0;
    if (search->found)
        *search->key_p = *key;
    return !search->found;
}

bool zr_key_find(const char *path, zr_key_t *key_p) {
    search_t search = {.path = path, .key_p = key_p};
    zr_keys_each(is_other, &search);
    return search.found;
}
