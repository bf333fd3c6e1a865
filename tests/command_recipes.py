"""Recipes as the command lines ``train`` and ``train-listener`` read them."""

from tellapart.cli.train import recipe_of
from tellapart.recipe.listener import load_listener
from tellapart.recipe.words import read_words


def load_recipe(argv):
    return recipe_of(argv)[0]


def load_listener_recipe(argv):
    argv = [part for word in argv for part in (("--loss", "pac") if word == "--pac" else (word,))]
    return read_words(argv, lambda source, asked, options, plugins: load_listener(source, options))[0]
