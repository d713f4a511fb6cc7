/*
 * The script goes through a file without a name and not through a pipe: gnuplot may end before it
 * has read all of it.
 */
#include "examples/common/gnuplot.h"

#include "examples/common/files.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

zr_status_t gnuplot_check_form(const char *option, const char *path, const zr_log_t *log) {
    if (files_name_ends(path, ".svg") || files_name_ends(path, ".png"))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "%s %s: the suffix determines the format; allowed: NAME.svg, NAME.png", option,
                   path);
}

/* In single quotes nothing is replaced, and a line's end cannot be written. */
void gnuplot_text(FILE *script, const char *text) {
    fputc('\'', script);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputc('\'', script);
        if (*text == '\n')
            fputs("'.\"\\n\".'", script);
        else
            fputc(*text, script);
    }
    fputc('\'', script);
}

/* Where no font is installed, the plain terminal brings its own. */
static void set_terminal(FILE *script, const char *path, int width, int height) {
    if (files_name_ends(path, ".svg"))
        fprintf(script, "set terminal svg size %d,%d font 'sans,12' background 'white'\n", width,
                height);
    else
        fprintf(script,
                "if (strlen(system('fc-list 2>/dev/null | head -n 1')) > 0) {\n"
                "set terminal pngcairo size %d,%d font 'sans,10'\n} else {\n"
                "set terminal png medium size %d,%d\n}\n",
                width, height, width, height);
    fputs("set output ", script);
    gnuplot_text(script, path);
    fputs("\n", script);
}

zr_status_t gnuplot_check_there(const char *option, const char *path, const zr_log_t *log) {
    const char *folders = getenv("PATH");
    for (const char *at = folders; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, ":");
        char name[4096];
        snprintf(name, sizeof(name), "%.*s/gnuplot", (int)length, at);
        if (access(name, X_OK) == 0)
            return ZR_OK;
        at += length + (at[length] == ':');
    }
    return zr_fail(log, ZR_ERR_UNSUPPORTED,
                   "%s %s: gnuplot is missing; install the package gnuplot-nox", option, path);
}

zr_status_t gnuplot_begin(const char *path, int width, int height, const zr_log_t *log,
                          gnuplot_t *plot_p) {
    gnuplot_t plot = {.script = tmpfile(), .path = path, .log = log};
    if (plot.script == NULL)
        return zr_fail(log, ZR_ERR_IO, "a script for gnuplot cannot be written: %s",
                       strerror(errno));
    set_terminal(plot.script, path, width, height);
    *plot_p = plot;
    return ZR_OK;
}

/* Its exit status; negative: it could not be started. */
static int run(int script) {
    char *words[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return -1;
    int error = posix_spawn_file_actions_adddup2(&actions, script, STDIN_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawnp(&child, words[0], &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        return -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

zr_status_t gnuplot_end(gnuplot_t *plot) {
    bool good = fflush(plot->script) == 0 && !ferror(plot->script);
    good = good && lseek(fileno(plot->script), 0, SEEK_SET) == 0;
    int code = good ? run(fileno(plot->script)) : 1;
    fclose(plot->script);
    plot->script = NULL;
    if (code == 0)
        return ZR_OK;
    if (code < 0 || code == 127)
        return zr_fail(plot->log, ZR_ERR_UNSUPPORTED,
                       "%s cannot be drawn: gnuplot is missing; install the package gnuplot-nox",
                       plot->path);
    return zr_fail(plot->log, ZR_ERR_IO, "gnuplot could not draw %s", plot->path);
}
