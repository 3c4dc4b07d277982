// Before anything is drawn: light or dark, as this person chose, else as their system does.
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.style.colorScheme = chosen;
}
